"""Schedules: graphs that change from round to round. Without one, the config's graph stays.

A schedule gives the links of a round from config, seed and round only: every process can compute them, and a resumed
run continues with the same graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from peermask.errors import GraphError
from peermask.graph.links import Links
from peermask.graph.mixing import links_of
from peermask.graph.topology import Graph, build_graph, expected_links, is_random
from peermask.registry import Options, Registry
from peermask.streams import stream

ONE_PEER = "one-peer-exponential"
Every = Annotated[int, Field(ge=1, description="rounds before the links change")]


@dataclass(frozen=True)
class Base:
    """The graph that the config names."""

    name: str
    options: Options
    agents: int
    seed: int

    @cached_property
    def links(self) -> Links:
        """Links of the first round."""
        return links_of(self.graph())

    def graph(self, round: int = 1) -> Graph:
        """Draw the graph of a round; in the first, the fixed graph."""
        return build_graph(self.name, self.options, self.agents, self.seed, round)


# (base: Base, round: int, *, options...) -> Links: those from this round on
schedules: Registry[Callable[..., Links]] = Registry("schedule")


class Schedule:
    """The links, round by round: by the named schedule, or always the same."""

    def __init__(self, base: Base, name: str | None = None, options: Options | None = None) -> None:
        self.base, self.name, self.options = base, name, options
        self.every = int(getattr(options, "every", 1))
        self._last: tuple[int, Links] | None = None  # since which round, and what

    @property
    def changes(self) -> bool:
        return self.name is not None

    @property
    def expected_links(self) -> int:
        """About how many links the graphs will have, before any is built."""
        if self.name in (None, "redrawn") or getattr(self.options, "among", None) == "graph":
            return expected_links(self.base.name, self.base.options, self.base.agents)
        return self.base.agents

    def since(self, round: int) -> int:
        """The round in which the links of this one began."""
        return 1 if self.name is None else round - (round - 1) % self.every

    def graphs(self, rounds: int) -> int:
        """Count the different graphs in `rounds` rounds, at most."""
        if self.name is None:
            return 1
        drawn = -(-rounds // self.every)
        return min(drawn, hops(self.base.agents)) if self.name == ONE_PEER else drawn

    def links(self, round: int) -> Links:
        """Return the links of a round, from 1."""
        since = self.since(round)
        if self.name is None:
            return self.base.links
        if self._last is None or self._last[0] != since:
            self._last = since, schedules[self.name].make(self.base, since, **dict(self.options or ()))
        return self._last[1]


@schedules.register("redrawn")
def redrawn(base: Base, round: int, *, every: Every = 1) -> Links:  # noqa: ARG001
    """The random graph of [graph], redrawn every few rounds; connected each time."""
    if round == 1 and not is_random(base.name, base.options, base.agents):
        raise GraphError(f"schedule.name = 'redrawn': a {base.name} graph is not random; choose another graph.name")
    return links_of(base.graph(round))


@schedules.register("matching")
def matching(
    base: Base,
    round: int,
    *,
    every: Every = 1,  # noqa: ARG001
    among: Annotated[
        Literal["all", "graph"],
        Field(description="pairs of all agents, one left over if their number is odd, or along links of [graph]"),
    ] = "all",
) -> Links:
    """Random pairs: every agent hears one other, or none if no partner is left."""
    if base.agents < 2:
        raise GraphError("schedule.name = 'matching': agents must be 2 or more")
    draw = stream(base.seed, "matching", round=round)
    if among == "all":
        order = draw.permutation(base.agents)
        half = base.agents // 2
        first, second = order[: 2 * half : 2], order[1 : 2 * half : 2]
    else:
        links = base.links
        once = links.senders > links.receivers
        ends = np.stack([links.receivers[once], links.senders[once]], 1)
        first, second = _greedy(ends[draw.permutation(len(ends))], base.agents).T
    return Links.between(np.concatenate([first, second]), np.concatenate([second, first]), base.agents)


@schedules.register(ONE_PEER)
def one_peer_exponential(base: Base, round: int) -> Links:
    """Every agent hears the one 1 before it, in the next round 2 before it, then 4, 8 and so on, then from 1 again."""
    if base.agents < 2:
        raise GraphError("schedule.name = 'one-peer-exponential': agents must be 2 or more")
    everyone, back = np.arange(base.agents), 2 ** ((round - 1) % hops(base.agents))
    return Links.between(everyone, (everyone - back) % base.agents, base.agents)


def hops(agents: int) -> int:
    """⌈log2 N⌉: how far apart peers may be, in powers of two."""
    return (agents - 1).bit_length()


def _greedy(ends: np.typing.NDArray[np.int64], agents: int) -> np.typing.NDArray[np.int64]:
    """[pairs, 2]: links taken in this order, but for those of agents that are taken."""
    free, taken = [True] * agents, []
    for i, j in ends.tolist():
        if free[i] and free[j]:
            free[i] = free[j] = False
            taken.append((i, j))
    return np.array(taken, np.int64).reshape(-1, 2)
