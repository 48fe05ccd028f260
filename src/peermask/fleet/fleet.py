"""What a fleet is: an experiment, its agents with their addresses, and the links between them; and the file of it.

The fleet file is the same on every device:

run = "5f3a9c0d12e47b86"        id of this deployment; peers of another one are refused
missing = "last"                what to do about a neighbour that does not answer
links = [[0, 1], [1, 2], ...]   the graph of the experiment as a list
[[agents]]                      one table per agent: its number and address
[[imports]]                     one table per plug-in: its file and SHA-256, or its module and version
[experiment]                    an ordinary experiment config

Agents and links may change while the fleet runs (`fleet/roster.py`): the file then has a serial number and a signature.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import tomllib
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, ValidationError

from peermask.algorithms import algorithms
from peermask.config.choice import first_problem
from peermask.config.experiment import ExperimentConfig
from peermask.errors import ConfigError, NodeError
from peermask.files import write_atomically
from peermask.graph import Base, Schedule
from peermask.masks.masker import Ratio, retentions
from peermask.plugins import Plugin, find_plugins, records
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

    @property
    def round_limit(self) -> float:
        """How many seconds a round waits for neighbours."""
        return self.wait_limit if self.missing == "wait" else self.round_deadline

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


# The fleet file.

HEADER = """\
# A peermask fleet: give this same file to every device, each with its own certificate and key.
# missing: "wait" for a neighbour that does not answer, count its "last" mask by age, or "skip" it.
"""


def new_fleet(
    config: ExperimentConfig, hosts: Sequence[str] = ("127.0.0.1",), port: int = 7450, missing: Missing = "last"
) -> Fleet:
    """A fleet for an experiment: one host for all agents, or one for each; agents of one host get consecutive ports."""
    if len(hosts) not in (1, config.agents):
        raise NodeError(f"{len(hosts)} hosts for {config.agents} agents; give one host, or one per agent")
    every = list(hosts) * config.agents if len(hosts) == 1 else list(hosts)
    seen: Counter[str] = Counter()
    members = []
    for agent, host in enumerate(every):
        members.append(FleetMember(agent=agent, address=join_address(host, port + seen[host])))
        seen[host] += 1
    fleet = Fleet(
        run=secrets.token_hex(8),
        missing=missing,
        links=links_of(config),
        agents=tuple(members),
        imports=tuple(records(config.imports)),
        experiment=config.model_copy(update={"compare": ()}),
    )
    check(fleet)
    return fleet


def save_fleet(path: Path, fleet: Fleet) -> None:
    if path.exists():
        raise NodeError(f"{path} exists; give another name, or delete it")
    if not path.parent.is_dir():
        raise NodeError(f"folder {path.parent} does not exist")
    write_fleet(path, fleet)


def write_fleet(path: Path, fleet: Fleet) -> None:
    """Write a fleet file, even if it exists."""
    values = fleet.model_dump(mode="json", exclude_none=True)
    values["experiment"].pop("imports", None)  # they are paths on this machine
    for key in ("imports", "left", "serial", "revoked_operators", "authorities"):
        if not values[key]:
            del values[key]
    for member in values["agents"]:
        for word in ("relayed", "revoked"):
            if not member[word]:
                del member[word]
    write_atomically(path, (HEADER + _links_table(values.pop("links")) + tomli_w.dumps(values)).encode())


def _links_table(links: list[list[int]]) -> str:
    """Several links on a line; the TOML writer would write four lines for each."""
    lines = [", ".join(map(str, links[start : start + 10])) for start in range(0, len(links), 10)]
    return "links = [\n" + "".join(f"    {line},\n" for line in lines) + "]\n"


def load_fleet(path: Path) -> Fleet:
    """Read and check a fleet file; every mistake is a one-line error.

    Its plug-ins are imported only if the user of this machine named them, and their hashes are the same.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        if "experiment" not in values:
            raise NodeError(f"is not a fleet file; make one of an experiment with `peermask fleet new FLEET {path}`")
        plugins = find_plugins(_imports(values), str(path), exact=True)
        fleet = Fleet.model_validate(values)
        check(fleet)
    except FileNotFoundError:
        raise NodeError(f"fleet file {path} does not exist; write one with `peermask fleet new {path}`") from None
    except OSError as error:
        raise NodeError(f"fleet file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise NodeError(f"fleet file {path} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise NodeError(f"{path}: {first_problem(error, Fleet)}") from None
    except (NodeError, ConfigError) as error:
        raise NodeError(f"{path}: {error}") from None
    return fleet.model_copy(update={"experiment": fleet.experiment.model_copy(update={"imports": plugins or None})})


def certificates_of(path: Path, fleet: Fleet) -> Path:
    """The certificate folder, relative to the fleet file."""
    return path.parent / fleet.certificates


def _imports(values: dict[str, Any]) -> list[Plugin]:
    """The plug-ins of a fleet; checked before the rest, which uses what they register."""
    tables, experiment = values.get("imports", []), values["experiment"]
    if isinstance(experiment, dict) and "imports" in experiment:
        raise NodeError(
            "experiment.imports: a fleet lists plug-ins with their hashes; write it with `peermask fleet new --import`"
        )
    if not isinstance(tables, list):
        raise NodeError(
            f"imports = {tables!r}: must be tables [[imports]], as `peermask fleet new --import` writes them"
        )
    try:
        return [Plugin.model_validate(one) for one in tables]
    except ValidationError as error:
        raise first_problem(error, Plugin, "imports") from None
