"""Topologies by name: which agents are neighbours, always as one connected graph of agents 0..N-1.

The shapes are in built_in.py; how strongly an agent listens is in mixing.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import networkx as nx

from peermask.errors import GraphError
from peermask.registry import Options, Registry
from peermask.streams import Stream, stream

if TYPE_CHECKING:
    Graph = nx.Graph[int]
else:
    Graph = nx.Graph

DRAWS = 100  # redraws of a random graph before it is called disconnected
AGENTS_NAMED = 10  # agents listed in an error


# (agents: int, draw: Stream, *, options...) -> Graph; the links, if drawn at all, come only from the stream
Topology = Callable[..., Graph]

topologies: Registry[Topology] = Registry("topology")
_link_counts: dict[Topology, Callable[..., float]] = {}


def expects_links(count: Callable[..., float]) -> Callable[[Topology], Topology]:
    """Declare about how many links a topology has: `count(agents, **options)`. Default: one an agent."""

    def declare(make: Topology) -> Topology:
        _link_counts[make] = count
        return make

    return declare


def expected_links(name: str, options: Options, agents: int) -> int:
    """About how many links a graph will have, before it is built."""
    count = _link_counts.get(topologies[name].make)
    return agents if count is None else max(agents, int(count(agents, **dict(options))))


def build_graph(name: str, options: Options, agents: int, seed: int, round: int = 1) -> Graph:
    """Build the graph of this name for a round; a random one is redrawn until connected, `DRAWS` times at most."""
    if agents < 1:
        raise GraphError(f"agents is {agents}: a graph needs at least one")
    make = topologies[name].make
    for attempt in range(DRAWS):
        draw = _stream(seed, round, attempt)
        graph = make(agents, draw, **dict(options))
        check_graph(graph, name, agents)
        if nx.is_connected(graph):
            return graph
        # A stream still at its start was not used: this topology is not random, and drawing again is no help.
        if draw.raw(1) == _stream(seed, round, attempt).raw(1):
            raise GraphError(f"{name} graph has {cut_off(graph)}: add links that join them")
    raise GraphError(f"{name} graph has {cut_off(graph, f' after {DRAWS} draws')}: {remedy(options)}")


def _stream(seed: int, round: int, attempt: int) -> Stream:
    if round == 1:
        return stream(seed, "graph", round=attempt)
    return stream(seed, "graph-of-round", round=round, step=attempt)


def is_random(name: str, options: Options, agents: int) -> bool:
    """Whether a topology draws anything."""
    draw = stream(0, "graph")
    topologies[name].make(agents, draw, **dict(options))
    return bool(draw.raw(1) != stream(0, "graph").raw(1))


def check_graph(graph: object, name: str, agents: int) -> None:
    """Check the result of a topology, perhaps one from outside."""
    if not isinstance(graph, nx.Graph):
        raise GraphError(f"{name} gave a {type(graph).__name__}; a topology gives a networkx.Graph")
    if graph.is_directed() or graph.is_multigraph():
        raise GraphError(
            f"{name} gave a {type(graph).__name__}; links go both ways here: give networkx.Graph(graph) instead"
        )
    if set(graph.nodes) != set(range(agents)):
        raise GraphError(f"{name} gave a graph whose nodes are not the agents 0 to {agents - 1}")
    if any(i == j for i, j in graph.edges):
        raise GraphError(f"{name} gave a graph with a link from an agent to itself; remove it")


def edges_hash(agents: int, edges: Iterable[Sequence[int]]) -> str:
    """sha256 in hex over the number of agents and the links in this order."""
    text = f"{agents}\n" + "".join(f"{i} {j}\n" for i, j in edges)
    return hashlib.sha256(text.encode()).hexdigest()


def cut_off(graph: Graph, when: str = "") -> str:
    """`3 parts; agents 4, 7 can reach nobody`: agents without a link, or else all outside the largest part."""
    parts = sorted(nx.connected_components(graph), key=lambda part: (-len(part), min(part)))
    alone = sorted(i for part in parts if len(part) == 1 for i in part)
    outside = sorted(i for part in parts[1:] for i in part)
    lost = f"{named(alone)} can reach nobody" if alone else f"{named(outside)} cannot reach the rest"
    return f"{len(parts)} parts{when}; {lost}"


def named(agents: list[int]) -> str:
    more = f" and {len(agents) - AGENTS_NAMED} more" if len(agents) > AGENTS_NAMED else ""
    return f"agent{'s' if len(agents) > 1 else ''} {', '.join(map(str, agents[:AGENTS_NAMED]))}{more}"


def remedy(options: Options) -> str:
    """Say what to change: the first option of a random topology sets how many links it has."""
    for key, value in options:
        return f"raise graph.{key} (now {value})"
    return "choose another topology or seed"
