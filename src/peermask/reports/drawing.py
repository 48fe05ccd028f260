"""Where the agents of a graph lie on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import networkx as nx

MOST = 400  # agents; with more, all lie on a circle


def positions(agents: int, links: Iterable[Sequence[int]]) -> list[list[float]]:
    """[N][x, y] in [-1, 1]; springs between linked agents, started from a circle, so always the same picture."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(agents))
    graph.add_edges_from((one, other) for one, other in links)
    circle = nx.circular_layout(graph)
    if agents > MOST or agents < 3:
        placed = circle
    else:
        placed = nx.spring_layout(graph, pos=circle, seed=0, iterations=60, k=1.6 / agents**0.5)
    axes = [_spread([float(placed[agent][axis]) for agent in range(agents)]) for axis in (0, 1)]
    return [list(place) for place in zip(*axes, strict=True)]


def _spread(values: list[float]) -> list[float]:
    """Over the whole of [-1, 1], so that no paper is wasted."""
    low, high = min(values), max(values)
    middle, reach = (low + high) / 2, (high - low) / 2 or 1.0
    return [round((value - middle) / reach, 4) for value in values]
