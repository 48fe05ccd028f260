"""The roster: the part of a fleet file that may change while the fleet runs, numbered and signed by the fleet's
authority.

    serial     how often it has changed; agents accept only later ones
    agents     numbers, addresses, and how many certificates of each were revoked
    links      which agents are neighbours
    left       agents that have left permanently
    revoked_operators    operators whose certificates were revoked
    authorities          those to trust from now on, once one has replaced another

It is signed in a canonical form, so its content determines its bytes. A roster is sent and stored as the signature in
hex, a line break, and those bytes; the signature is verified before anything else is parsed.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, ValidationError

from peermask.algorithms import algorithms
from peermask.config.choice import first_problem
from peermask.config.file import make_config
from peermask.errors import NodeError
from peermask.fleet.fleet import Fleet, FleetMember, Link, check, check_operator_name, join_address, split_address
from peermask.graph.links import Links
from peermask.graph.mixing import build_mixing
from peermask.masks.masker import retentions
from peermask.registry import Options
from peermask.run.build import Experiment, agents_with, build

LARGEST_BYTES = 2**19  # bytes of a signed roster; a session allows a little more
DEFAULT_PORT = 7450
DEFAULT_LINKS = 2  # default links of a new agent, so that it does not depend on a single neighbour

Verify = Callable[[bytes, str], bool]  # bytes, signature in hex


class Roster(Options):
    """The keys of a fleet file that may change, and the id of the fleet."""

    run: str
    serial: Annotated[int, Field(ge=0, lt=2**32)] = 0
    agents: tuple[FleetMember, ...]
    links: tuple[Link, ...]
    left: tuple[int, ...]
    revoked_operators: tuple[str, ...] = ()
    authorities: Annotated[tuple[Annotated[str, Field(max_length=4096)], ...], Field(max_length=2)] = ()


def encode_roster(fleet: Fleet) -> bytes:
    """The canonical form of a fleet's roster: JSON with sorted keys and lists, without spaces and defaults."""
    agents = [member.model_dump(exclude_defaults=True) for member in sorted(fleet.agents, key=lambda one: one.agent)]
    links = sorted((min(link), max(link)) for link in fleet.links)
    values = {"run": fleet.run, "serial": fleet.serial, "agents": agents, "links": links, "left": sorted(fleet.left)}
    if fleet.revoked_operators:
        values["revoked_operators"] = sorted(fleet.revoked_operators)
    if fleet.authorities:
        values["authorities"] = fleet.authorities
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def digest_of(fleet: Fleet) -> bytes:
    """Eight bytes that differ between two rosters with the same serial number."""
    return hashlib.sha256(encode_roster(fleet)).digest()[:8]


def signed_roster(fleet: Fleet) -> bytes:
    """A roster as it is sent; empty if it never changed."""
    return f"{fleet.signature}\n".encode() + encode_roster(fleet) if fleet.serial and fleet.signature else b""


def read_signed(data: bytes, fleet: Fleet, verify: Verify) -> Fleet:
    """The fleet with a received roster, or a NodeError: forged, malformed, or of another fleet."""
    if len(data) > LARGEST_BYTES:
        raise NodeError(f"a roster of {len(data)} bytes is refused; allowed: {LARGEST_BYTES}")
    signature, _, content = data.partition(b"\n")
    text = signature[:1024].decode("ascii", errors="replace")
    if not verify(content, text):
        raise NodeError("a roster is refused: it is not signed by this fleet's authority")
    try:
        roster = Roster.model_validate(json.loads(content))
    except (ValueError, ValidationError, RecursionError):
        raise NodeError("a roster is refused: it is signed, but this version cannot read it; update peermask") from None
    return with_roster(fleet, roster, text)


def with_roster(fleet: Fleet, roster: Roster, signature: str | None) -> Fleet:
    if roster.run != fleet.run:
        raise NodeError(f"a roster of fleet {roster.run!r:.40} is refused; this is fleet {fleet.run!r}")
    return check_roster(fleet.model_copy(update={**dict(roster), "signature": signature}))


def check_roster(fleet: Fleet) -> Fleet:
    check(fleet)
    if len(encode_roster(fleet)) > LARGEST_BYTES - 1024:
        raise NodeError(f"a roster of {len(fleet.agents)} agents and {len(fleet.links)} links is too large to send")
    return fleet


def next_roster(fleet: Fleet, **keys: object) -> Fleet:
    """The next roster, not signed yet."""
    return check_roster(fleet.model_copy(update={**keys, "serial": fleet.serial + 1, "signature": None}))


def add_agent(
    fleet: Fleet,
    host: str,
    port: int | None = None,
    links: Sequence[int] = (),
    retention: float | None = None,
    *,
    relayed: bool = False,
) -> Fleet:
    """The fleet with one more agent, linked to these, or to those with the fewest links."""
    _check_links_are_chosen(fleet, "added")
    number, used = fleet.numbers[-1] + 1, [split_address(member.address) for member in fleet.agents]
    if port is None:
        lowest = min((taken for _, taken in used), default=DEFAULT_PORT)  # where agents of other hosts begin
        port = max((taken + 1 for place, taken in used if place == host.strip("[]")), default=lowest)
    fewest = sorted(fleet.agents, key=lambda one: (len(fleet.neighbours(one.agent)), one.agent))[:DEFAULT_LINKS]
    chosen = [fleet.member(other).agent for other in links] or [one.agent for one in fewest]
    share = _retention(fleet, number, retention)
    own = FleetMember(agent=number, address=join_address(host, port), relayed=relayed, retention=share)
    pairs = [(other, number) for other in dict.fromkeys(chosen)]
    return next_roster(fleet, agents=(*fleet.agents, own), links=tuple(sorted([*fleet.links, *pairs])))


def remove_agents(fleet: Fleet, agents: Iterable[int]) -> Fleet:
    """The fleet without some agents and their links, permanently."""
    gone = {fleet.member(agent).agent for agent in agents}
    return next_roster(
        fleet,
        agents=tuple(member for member in fleet.agents if member.agent not in gone),
        links=tuple(link for link in fleet.links if not gone & set(link)),
        left=tuple(sorted({*fleet.left, *gone})),
    )


def link_agents(fleet: Fleet, i: int, j: int) -> Fleet:
    _check_links_are_chosen(fleet, "linked")
    if j in fleet.neighbours(i):
        raise NodeError(f"agents {i} and {j} are linked already")
    for agent in (i, j):
        fleet.member(agent)
    return next_roster(fleet, links=tuple(sorted([*fleet.links, (min(i, j), max(i, j))])))


def unlink_agents(fleet: Fleet, i: int, j: int) -> Fleet:
    _check_links_are_chosen(fleet, "unlinked")
    if j not in fleet.neighbours(i):
        raise NodeError(f"agents {i} and {j} are not linked")
    return next_roster(fleet, links=tuple(link for link in fleet.links if set(link) != {i, j}))


def read_file(path: Path, fleet: Fleet, verify: Verify | None) -> Fleet:
    """The fleet with the present roster of its file; a one-line error if that is incomplete or not signed."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        roster = Roster.model_validate(
            {"left": [], **{key: values[key] for key in Roster.model_fields if key in values}}
        )
    except ValidationError as error:
        raise NodeError(f"{path} has changed and is not used: {first_problem(error, Roster)}") from None
    except (OSError, ValueError) as error:
        raise NodeError(f"{path} has changed and is not used: {error}") from None
    later = with_roster(fleet, roster, values.get("signature"))
    if encode_roster(later) == encode_roster(fleet):  # something else in it has changed, or ca.pem
        return fleet
    if verify is not None and not verify(encode_roster(later), str(later.signature)):
        raise NodeError(f"{path} has changed and is not used: its roster is not signed by this fleet's authority")
    return later


def revoke_certificates(fleet: Fleet, agents: Iterable[int], operators: Iterable[str] = ()) -> Fleet:
    """The fleet with the present certificates of some agents and operators revoked."""
    gone = tuple(dict.fromkeys(operators))
    if known := set(gone) & set(fleet.revoked_operators):
        raise NodeError(f"operator {min(known)} is revoked already")
    for name in gone:
        check_operator_name(name)
    chosen = {fleet.member(agent).agent for agent in agents}
    members = (
        member.model_copy(update={"revoked": member.revoked + 1}) if member.agent in chosen else member
        for member in fleet.agents
    )
    return next_roster(fleet, agents=tuple(members), revoked_operators=(*fleet.revoked_operators, *gone))


def agents_without_neighbours(fleet: Fleet) -> list[int]:
    """Agents without neighbours."""
    return [member.agent for member in fleet.agents if not fleet.neighbours(member.agent)]


def _check_links_are_chosen(fleet: Fleet, done: str) -> None:
    name = fleet.experiment.algorithm.name
    if algorithms[name].make.hears_all:
        raise NodeError(
            f"in {name} every agent receives from every other: none can be {done} while it runs; write a new fleet"
        )
    if algorithms[name].make.needs_every_message:
        raise NodeError(f"{name} needs every message since the first: no agent can be {done}; write a new fleet")
    if fleet.experiment.schedule is not None:
        raise NodeError(f"experiment.schedule sets the links: no agent can be {done} while it runs; write a new fleet")


def _retention(fleet: Fleet, number: int, given: float | None) -> float:
    """The given one, or what the experiment says for one more agent."""
    config = fleet.experiment
    if given is None and isinstance(config.retention, tuple):
        raise NodeError("the experiment lists one retention for each agent; give one for the new agent: --retention")
    if given is None:
        return retentions(config.retention, number + 1, config.seed)[number]
    least = min(fleet.retentions())
    if algorithms[config.algorithm.name].make.common_retention and given < least:
        raise NodeError(f"--retention {given:g} is below {least:g}, at which all agents learn; give at least that")
    return given


# The parts of an experiment for a fleet whose agents and links have changed.
#
# The experiment does not change, nor does its hash, which agents compare: its `agents` is the number at the start. An
# added agent partitions the data on its device as if it were the last of that many agents: with the partition
# `everything` it gets all samples there, with any other some that another agent may have too.


def build_member(fleet: Fleet, agent: int) -> Experiment:
    """The experiment as one agent of the fleet needs it."""
    config = fleet.experiment
    if agent < config.agents:
        return by_roster(build(config), fleet)
    ratios = fleet.retentions()[: agent + 1]
    table = {**config.table(), "agents": agent + 1, "retention": list(ratios), "graph": {"name": "path"}}
    wider = make_config({key: value for key, value in table.items() if key != "imports"})
    return by_roster(replace(build(wider), config=config), fleet)


def by_roster(experiment: Experiment, fleet: Fleet) -> Experiment:
    """With the agents and links of the roster; unchanged if the roster never changed, or if links follow a schedule, in
    which agents that have left are absent."""
    if not fleet.serial or experiment.schedule.changes:
        return experiment
    ratios, sizes = fleet.retentions(), experiment.samples.sizes
    count = len(ratios)
    links = np.array(fleet.links, np.int64).reshape(-1, 2)
    both = np.concatenate([links, links[:, ::-1]])
    # Used where a server weights agents by samples; other agents do not know the number of an added agent.
    shares = np.concatenate([sizes, np.full(max(0, count - len(sizes)), sizes.mean())])[:count]
    return replace(
        experiment,
        agents=agents_with(ratios, experiment.network, experiment.config),
        mixing=build_mixing(Links.between(both[:, 0], both[:, 1], count), shares),
    )
