"""What a fleet is: an experiment, its agents with their addresses, and the links between them."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from itertools import combinations
from typing import Annotated, Literal

from pydantic import Field

from peermask.algorithms import algorithms
from peermask.config.experiment import ExperimentConfig
from peermask.errors import NodeError
from peermask.graph import Base, Schedule
from peermask.masks.masker import Ratio, retentions
from peermask.plugins import Plugin
from peermask.registry import Options

# Addresses of a fleet: `host:port`.

ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):(?P<port>[0-9]{1,5})")


def join_address(host: str, port: int) -> str:
    """`host:port`, or `[host]:port` for IPv6, with or without brackets."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def split_address(address: str, *, lowest: int = 1) -> tuple[str, int]:
    """`host:port` or `[ipv6]:port`, the host without brackets. Port 0 means any free one, where that is allowed."""
    match = ADDRESS.fullmatch(address)
    host = "" if match is None else match["host"].strip("[]")
    if match is None or not lowest <= int(match["port"]) < 65_536 or (":" in host and not _is_ipv6(host)):
        raise NodeError(f"address {address!r} is not host:port, such as 192.168.1.20:7450 or [fe80::1]:7450")
    return host, int(match["port"])


def _is_ipv6(host: str) -> bool:
    try:
        return bool(ipaddress.IPv6Address(host))
    except ValueError:
        return False


Link = tuple[int, int]
Missing = Literal["wait", "last", "skip"]
MOST_GRAPHS = 10_000  # of a schedule; their links are all in the fleet file
Seconds = Annotated[float, Field(gt=0, le=86_400)]
OPERATOR_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


class FleetMember(Options):
    """One agent of a fleet and its address."""

    agent: Annotated[int, Field(ge=0)]
    address: str
    listen: str | None = None  # where it listens, if not at its address: "0.0.0.0:7450" behind a forwarded port
    relayed: bool = False  # it cannot be dialled; other such agents reach it through the relay
    revoked: Annotated[int, Field(ge=0)] = 0  # how many of its certificates were revoked
    retention: Ratio | None = None  # of an added agent; that of others is in the experiment

    @property
    def name(self) -> str:
        """The name in its certificate; it changes when that is revoked."""
        return f"agent-{self.agent}" + (f"-{self.revoked}" if self.revoked else "")

    @property
    def host(self) -> str:
        return split_address(self.address)[0]


class Fleet(Options):
    """A deployment: the experiment, its agents, and what they do if a neighbour does not answer."""

    run: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    missing: Missing = "last"
    round_deadline: Seconds = Field(30.0, description="seconds a round waits for neighbours that are there")
    wait_limit: Seconds = Field(600.0, description="with missing = wait: seconds a round waits for any neighbour")
    start_limit: Seconds = Field(60.0, description="seconds the first round waits for all neighbours to appear")
    relay: str | None = Field(None, description="address of `peermask relay`, for agents that cannot be dialled")
    certificates: str = Field("certs", description="folder of certificates, relative to this file")
    links: tuple[Link, ...]
    agents: tuple[FleetMember, ...]
    serial: Annotated[int, Field(ge=0, lt=2**32)] = 0  # of the roster: how often agents or links changed
    left: tuple[int, ...] = ()  # agents that have left permanently; a number is never used twice
    revoked_operators: tuple[str, ...] = ()  # their names cannot be used again either
    # Certificates of the authorities, DER in base64, once one has replaced another; until then ca.pem alone counts.
    authorities: Annotated[tuple[Annotated[str, Field(max_length=4096)], ...], Field(max_length=2)] = ()
    signature: str | None = None  # of the roster, by the fleet's authority, or two of them, in hex
    imports: tuple[Plugin, ...] = ()  # which every device must have, allowed by its user
    experiment: ExperimentConfig

    def neighbours(self, agent: int) -> tuple[int, ...]:
        return tuple(sorted(j if i == agent else i for i, j in self.links if agent in (i, j)))

    def member(self, agent: int) -> FleetMember:
        match = next((member for member in self.agents if member.agent == agent), None)
        if match is None:
            if agent in self.left:
                raise NodeError(f"agent {agent} has left this fleet permanently; `peermask fleet add` adds a new one")
            without = f", without {', '.join(map(str, self.left))}" if self.left else ""
            raise NodeError(f"agent {agent} does not exist; this fleet has agents 0 to {self.numbers[-1]}{without}")
        return match

    @property
    def numbers(self) -> range:
        """Numbers of all agents, including those that have left."""
        every = [*(member.agent for member in self.agents), *self.left]
        return range(max([self.experiment.agents, *(number + 1 for number in every)]))

    def retentions(self) -> tuple[float, ...]:
        """r_i of all agents, including those that have left; that of an added one that has left is arbitrary."""
        config = self.experiment
        first = retentions(config.retention, config.agents, config.seed)
        added = {member.agent: member.retention for member in self.agents}
        return first + tuple(added.get(number) or first[0] for number in self.numbers[len(first) :])


def links_of(config: ExperimentConfig) -> tuple[Link, ...]:
    """The links of the experiment's graph: those of all its graphs if it changes, or all pairs for a method in which
    every agent receives from every other."""
    pairs = tuple(combinations(range(config.agents), 2))
    if algorithms[config.algorithm.name].make.hears_all:
        return pairs
    base, choice = Base(config.graph.name, config.graph.options, config.agents, config.seed), config.schedule
    schedule = Schedule(base) if choice is None else Schedule(base, choice.name, choice.options)
    links: set[Link] = set()
    for number in sorted({schedule.since(number) for number in range(1, config.rounds + 1)})[:MOST_GRAPHS]:
        links.update((i, j) for i, j in schedule.links(number).edges())
        if len(links) == len(pairs):
            break
    return tuple(sorted(links))


def check_operator_name(name: str) -> None:
    if not OPERATOR_NAME.fullmatch(name):
        raise NodeError(f"operator {name!r}: a name has up to 32 lower-case letters, digits and hyphens")


# Checks of a fleet that concern several keys together.


def check(fleet: Fleet) -> None:
    """Raise a NodeError for a fleet that cannot run."""
    config = fleet.experiment
    _check_numbers(fleet)
    seen: dict[str, int] = {}
    for member in fleet.agents:
        split_address(member.address)
        if member.listen is not None:
            split_address(member.listen)
        if member.address in seen:
            raise NodeError(f"agents {seen[member.address]} and {member.agent} have the same address {member.address}")
        seen[member.address] = member.agent
    if fleet.relay is not None:
        split_address(fleet.relay)
    elif any(member.relayed for member in fleet.agents):
        relayed = next(member.agent for member in fleet.agents if member.relayed)
        raise NodeError(f'agent {relayed} is relayed, and there is no relay; add `relay = "host:port"`')
    retentions(config.retention, config.agents, config.seed)
    for key in ("liars", "deaths"):
        if getattr(config, key) is not None:
            raise NodeError(f"experiment.{key}: only the simulator supports {key}; delete it")
    if config.schedule is not None and config.rounds > MOST_GRAPHS:
        raise NodeError(
            f"experiment.schedule: a fleet supports at most {MOST_GRAPHS:,} rounds of it, not {config.rounds:,}"
        )
    if config.compare:
        raise NodeError("experiment.compare: a fleet runs one algorithm; delete it and write one fleet file for each")
    if config.stop.patience:
        raise NodeError("experiment.stop.patience: no agent knows the mean accuracy of all agents; set it to 0")
    name = config.algorithm.name
    if name in algorithms and algorithms[name].make.needs_every_message and fleet.missing != "wait":
        raise NodeError(f"missing = {fleet.missing!r}: {name} needs every message; set it to 'wait'")
    if config.asynchronous is not None and fleet.missing == "wait":
        raise NodeError("missing = 'wait': agents of an asynchronous run do not wait; set it to 'last'")
    if config.asynchronous is not None and config.asynchronous.trace is not None:
        raise NodeError("experiment.asynchronous.trace: only the simulator replays traces; delete it")
    check_links(fleet)


def _check_numbers(fleet: Fleet) -> None:
    first, numbers = fleet.experiment.agents, [member.agent for member in fleet.agents]
    if not fleet.serial and (numbers != list(range(first)) or fleet.left):
        raise NodeError(
            f"agents are numbered {numbers}; experiment.agents = {first} needs 0 to {first - 1} "
            "(`peermask fleet add` and `fleet remove` change that)"
        )
    every = [*numbers, *fleet.left]
    twice = next((number for number, count in Counter(every).items() if count > 1), None)
    if twice is not None:
        raise NodeError(f"agent {twice} is there more than once, or has left; numbers are used only once")
    lost = sorted(set(range(first)) - set(every))
    if lost or not numbers:
        raise NodeError(f"agents: {lost or 'all'} are missing; `peermask fleet remove` records agents that have left")
    for member in fleet.agents:
        if (member.retention is not None) != (member.agent >= first):
            must = "must be given" if member.agent >= first else "is in the experiment; delete it"
            raise NodeError(f"agents: retention of agent {member.agent} {must}")


def _check_changed_links(fleet: Fleet) -> None:
    numbers, seen = {member.agent for member in fleet.agents}, set()
    for i, j in fleet.links:
        if i == j:
            raise NodeError(f"links: agent {i} is linked to itself")
        for agent in (i, j):
            if agent not in numbers:
                raise NodeError(f"links: {i} - {j} is a link of agent {agent}, which this fleet does not have")
        if (min(i, j), max(i, j)) in seen:
            raise NodeError(f"links: {i} - {j} appears twice")
        seen.add((min(i, j), max(i, j)))


def check_links(fleet: Fleet) -> None:
    """Links are in the file for people and firewalls; they are the experiment's graph until a roster changes them."""
    if fleet.serial:
        _check_changed_links(fleet)
        return
    wanted, given = set(links_of(fleet.experiment)), {(min(link), max(link)) for link in fleet.links}
    for odd, problem in ((given - wanted, "is not"), (wanted - given, "is missing, but it is")):
        if odd:
            i, j = min(odd)
            raise NodeError(
                f"links: {i} - {j} {problem} a link of the experiment ({fleet.experiment.graph.name} graph, "
                f"{fleet.experiment.algorithm.name}); change experiment.graph and write the file again"
            )
