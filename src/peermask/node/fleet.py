"""What a fleet is: an experiment, its agents with their addresses, and the links between them."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Annotated, Literal

from pydantic import Field

from peermask.algorithms import algorithms
from peermask.errors import NodeError
from peermask.experiment.config import ExperimentConfig
from peermask.graph import Base, Schedule
from peermask.masks.budget import Ratio, retentions
from peermask.node.address import split_address
from peermask.plugins import Plugin
from peermask.registry import Options

Link = tuple[int, int]
Missing = Literal["wait", "last", "skip"]
GRAPHS = 10_000  # of a schedule; their links are all in the fleet file
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
    signature: str | None = None  # of the roster, by the fleet's authority
    imports: tuple[Plugin, ...] = ()  # which every device must have, allowed by its user
    experiment: ExperimentConfig

    def neighbours(self, agent: int) -> tuple[int, ...]:
        return tuple(sorted(j if i == agent else i for i, j in self.links if agent in (i, j)))

    def member(self, agent: int) -> FleetMember:
        found = next((member for member in self.agents if member.agent == agent), None)
        if found is None:
            if agent in self.left:
                raise NodeError(f"agent {agent} has left this fleet permanently; `peermask fleet add` adds a new one")
            without = f", without {', '.join(map(str, self.left))}" if self.left else ""
            raise NodeError(f"agent {agent} does not exist; this fleet has agents 0 to {self.numbers[-1]}{without}")
        return found

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
    for number in sorted({schedule.since(number) for number in range(1, config.rounds + 1)})[:GRAPHS]:
        links.update((i, j) for i, j in schedule.links(number).edges())
        if len(links) == len(pairs):
            break
    return tuple(sorted(links))


def check_operator_name(name: str) -> None:
    if not OPERATOR_NAME.fullmatch(name):
        raise NodeError(f"operator {name!r}: a name has up to 32 lower-case letters, digits and hyphens")
