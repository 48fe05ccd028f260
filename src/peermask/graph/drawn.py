"""Random topologies, drawn from a keyed stream: networkx does not guarantee the same graph in every version.

A single draw need not be connected; topology.py draws again.
"""

from __future__ import annotations

from itertools import combinations
from typing import Annotated

import networkx as nx
import numpy as np
from pydantic import Field

from peermask.errors import GraphError
from peermask.graph.shapes import from_links
from peermask.graph.topology import Graph, topologies
from peermask.streams import Stream

RESTARTS = 1000  # attempts at a pairing; one that gets stuck is started over


@topologies.register("erdos-renyi")
def erdos_renyi(
    agents: int,
    draw: Stream,
    *,
    p: Annotated[float, Field(gt=0, le=1, description="probability that two agents are linked")] = 0.5,
) -> Graph:
    """Every pair is linked with the same probability, independently."""
    # Agent by agent: a number for every pair at once would not fit for many agents.
    later = (i + 1 + np.flatnonzero(draw.uniform(agents - 1 - i) < p) for i in range(agents))
    return from_links(agents, [(i, j) for i, others in enumerate(later) for j in others.tolist()])


@topologies.register("random-regular")
def random_regular(
    agents: int, draw: Stream, *, degree: Annotated[int, Field(ge=1, description="neighbours of every agent")] = 4
) -> Graph:
    """A random graph where every agent has the same number of neighbours (Steger and Wormald)."""
    check_degree(agents, degree)
    if agents * degree % 2:
        raise GraphError(f"graph.degree is {degree} for {agents} agents: one of the two must be even")
    missing = agents - 1 - degree
    if missing < degree:  # pairing gets stuck on dense graphs, so draw the links that are left out
        return nx.complement(pair_up(agents, missing, draw))
    return pair_up(agents, degree, draw)


def pair_up(agents: int, degree: int, draw: Stream) -> Graph:
    """Shuffle `degree` link ends of every agent, join those side by side, and shuffle what cannot be joined
    again, until no end is left; if it gets stuck, start over."""
    for _ in range(RESTARTS):
        links: set[tuple[int, int]] = set()
        ends = [i for i in range(agents) for _ in range(degree)]
        while ends and any(pair not in links for pair in combinations(sorted(set(ends)), 2)):
            shuffled = [ends[k] for k in draw.permutation(len(ends))]
            ends = []
            for a, b in zip(shuffled[::2], shuffled[1::2], strict=True):
                link = (min(a, b), max(a, b))
                if a == b or link in links:
                    ends += [a, b]
                else:
                    links.add(link)
        if not ends:
            return from_links(agents, sorted(links))
    raise GraphError(f"no graph with graph.degree {degree} for {agents} agents in {RESTARTS} tries: change one")


@topologies.register("small-world")
def small_world(
    agents: int,
    draw: Stream,
    *,
    degree: Annotated[int, Field(ge=2, description="neighbours on the ring before rewiring; even")] = 4,
    rewire: Annotated[float, Field(ge=0, le=1, description="probability that a link is moved to another agent")] = 0.1,
) -> Graph:
    """A ring with links to the nearest few agents, some of them moved at random (Watts and Strogatz)."""
    check_degree(agents, degree)
    if degree % 2:
        raise GraphError(f"graph.degree is {degree}: small-world needs an even number, half on either side")
    ring = [(i, (i + hop) % agents) for hop in range(1, degree // 2 + 1) for i in range(agents)]
    graph = from_links(agents, ring)
    for near, far in ring:
        moved, place = draw.uniform(2)
        taken = sorted([near, *graph.neighbors(near)])
        others = agents - len(taken)
        if moved < rewire and others:
            graph.remove_edge(near, far)
            graph.add_edge(near, nth_other(int(place * others), taken))
    return graph


def nth_other(n: int, taken: list[int]) -> int:
    """The agent that is number `n` among those that are not taken; `taken` is sorted."""
    for agent in taken:
        if agent > n:
            break
        n += 1
    return n


def check_degree(agents: int, degree: int) -> None:
    if degree >= agents:
        raise GraphError(
            f"graph.degree is {degree}, but {agents} agents have at most {agents - 1} neighbours each: "
            f"lower graph.degree or add agents"
        )
