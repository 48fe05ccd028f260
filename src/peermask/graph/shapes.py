"""Topologies without randomness: ring, path, star, complete, grid.

One agent alone is allowed in all of them and has no links; two agents have one link.
"""

from __future__ import annotations

import math
from typing import Annotated

import networkx as nx
from pydantic import Field

from peermask.errors import GraphError
from peermask.graph.topology import Graph, topologies
from peermask.streams import Stream


def from_links(agents: int, links: list[tuple[int, int]]) -> Graph:
    graph: Graph = nx.Graph()
    graph.add_nodes_from(range(agents))
    graph.add_edges_from(links)
    return graph


@topologies.register("path")
def path(agents: int, _draw: Stream) -> Graph:
    """A line: agent i hears i-1 and i+1."""
    return from_links(agents, [(i, i + 1) for i in range(agents - 1)])


@topologies.register("ring")
def ring(agents: int, _draw: Stream) -> Graph:
    """A line whose two ends hear each other."""
    closing = [(0, agents - 1)] if agents > 2 else []
    return from_links(agents, [(i, i + 1) for i in range(agents - 1)] + closing)


@topologies.register("star")
def star(agents: int, _draw: Stream) -> Graph:
    """Agent 0 in the middle; all others hear only it."""
    return from_links(agents, [(0, i) for i in range(1, agents)])


@topologies.register("complete")
def complete(agents: int, _draw: Stream) -> Graph:
    """Every agent is linked to every other."""
    return from_links(agents, [(i, j) for j in range(agents) for i in range(j)])


@topologies.register("grid")
def grid(
    agents: int,
    _draw: Stream,
    *,
    rows: Annotated[
        int | None, Field(ge=1, description="rows; default: as square as the number of agents allows")
    ] = None,
) -> Graph:
    """Rows and columns without wrap-around; agent i is in row i // columns."""
    if rows is None:
        rows = max(r for r in range(1, math.isqrt(agents) + 1) if agents % r == 0)
    if agents % rows:
        raise GraphError(f"graph.rows is {rows}, but {agents} agents do not fill {rows} equal rows")
    columns = agents // rows
    across = [(i, i + 1) for i in range(agents) if (i + 1) % columns]
    down = [(i, i + columns) for i in range(agents - columns)]
    return from_links(agents, across + down)
