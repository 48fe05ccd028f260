"""Random topologies, each drawn from the stream it is given: networkx's generators do not promise theirs.

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

RESTARTS = 1000  # of a pairing that ran into a dead end


@topologies.register("erdos-renyi")
def erdos_renyi(
    agents: int,
    draw: Stream,
    *,
    p: Annotated[float, Field(gt=0, le=1, description="chance that two agents hear each other")] = 0.5,
) -> Graph:
    """Every pair is linked with the same chance, independently."""
    first, second = np.triu_indices(agents, 1)
    linked = draw.uniform(first.size) < p  # [N (N-1) / 2]
    return from_links(agents, list(zip(first[linked].tolist(), second[linked].tolist(), strict=True)))


@topologies.register("random-regular")
def random_regular(
    agents: int,
    draw: Stream,
    *,
    degree: Annotated[int, Field(ge=1, description="neighbours of every agent")] = 4,
) -> Graph:
    """Every agent has the same number of neighbours, otherwise at random (Steger and Wormald's pairing)."""
    check_degree(agents, degree)
    if agents * degree % 2:
        raise GraphError(f"graph.degree is {degree} for {agents} agents: one of the two must be even")
    missing = agents - 1 - degree
    if missing < degree:  # pairing dead-ends on dense graphs, so draw the links that are left out
        return nx.complement(pair_up(agents, missing, draw))
    return pair_up(agents, degree, draw)


def pair_up(agents: int, degree: int, draw: Stream) -> Graph:
    """Shuffle `degree` link ends of every agent, join those side by side, and shuffle what cannot be joined
    again, until no end is left; a dead end starts afresh."""
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
    rewire: Annotated[float, Field(ge=0, le=1, description="chance that a link gets a new far end")] = 0.1,
) -> Graph:
    """A ring where all hear the nearest few, with some links moved to far agents (Watts and Strogatz)."""
    check_degree(agents, degree)
    if degree % 2:
        raise GraphError(f"graph.degree is {degree}: small-world needs an even number, half on either side")
    ring = [(i, (i + hop) % agents) for hop in range(1, degree // 2 + 1) for i in range(agents)]
    graph = from_links(agents, ring)
    for near, far in ring:
        moved, place = draw.uniform(2)
        strangers = [j for j in range(agents) if j != near and not graph.has_edge(near, j)]
        if moved < rewire and strangers:
            graph.remove_edge(near, far)
            graph.add_edge(near, strangers[int(place * len(strangers))])
    return graph


def check_degree(agents: int, degree: int) -> None:
    if degree >= agents:
        raise GraphError(
            f"graph.degree is {degree}, but {agents} agents have at most {agents - 1} neighbours each: "
            f"lower graph.degree or add agents"
        )
