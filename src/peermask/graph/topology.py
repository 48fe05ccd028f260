"""Topologies by name: which agents are neighbours, always as one connected graph of agents 0..N-1.

Built-in ones are fixed shapes, random graphs from a keyed stream, and graphs read from a file. How strongly an agent
listens is in mixing.py.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import networkx as nx
import numpy as np
from pydantic import Field

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
            raise GraphError(f"{name} graph has {describe_parts(graph)}: add links that join them")
    raise GraphError(f"{name} graph has {describe_parts(graph, f' after {DRAWS} draws')}: {remedy(options)}")


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


def describe_parts(graph: Graph, when: str = "") -> str:
    """`3 parts; agents 4, 7 can reach nobody`: agents without a link, or else all outside the largest part."""
    parts = sorted(nx.connected_components(graph), key=lambda part: (-len(part), min(part)))
    alone = sorted(i for part in parts if len(part) == 1 for i in part)
    outside = sorted(i for part in parts[1:] for i in part)
    lost = f"{name_agents(alone)} can reach nobody" if alone else f"{name_agents(outside)} cannot reach the rest"
    return f"{len(parts)} parts{when}; {lost}"


def name_agents(agents: list[int]) -> str:
    more = f" and {len(agents) - AGENTS_NAMED} more" if len(agents) > AGENTS_NAMED else ""
    return f"agent{'s' if len(agents) > 1 else ''} {', '.join(map(str, agents[:AGENTS_NAMED]))}{more}"


def remedy(options: Options) -> str:
    """Say what to change: the first option of a random topology sets how many links it has."""
    for key, value in options:
        return f"raise graph.{key} (now {value})"
    return "choose another topology or seed"


# Built-in topologies.

# Fixed shapes. One agent alone is allowed in all of them and has no links; two agents have one link.


def from_links(agents: int, links: list[tuple[int, int]]) -> Graph:
    graph: Graph = nx.empty_graph(agents)
    graph.add_edges_from(links)
    return graph


@topologies.register("path")
def path(agents: int, _draw: Stream) -> Graph:
    """A line: agent i hears i-1 and i+1."""
    return from_links(agents, [(i, i + 1) for i in range(agents - 1)])


@topologies.register("ring")
def ring(agents: int, _draw: Stream) -> Graph:
    """A line whose two ends hear each other."""
    return from_links(agents, [(i, (i + 1) % agents) for i in range(agents) if agents > 1])


@topologies.register("star")
def star(agents: int, _draw: Stream) -> Graph:
    """Agent 0 in the middle; all others hear only it."""
    return from_links(agents, [(0, i) for i in range(1, agents)])


@topologies.register("complete")
@expects_links(lambda agents: agents * (agents - 1) // 2)
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


# Random graphs. networkx does not guarantee the same graph in every version, so they are drawn from a keyed stream. A
# single draw need not be connected; topology.py draws again.

RESTARTS = 1000  # attempts at a pairing; one that gets stuck is started over


@topologies.register("erdos-renyi")
@expects_links(lambda agents, p: p * (agents * (agents - 1) // 2))
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
@expects_links(lambda agents, degree: agents * degree // 2)
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
@expects_links(lambda agents, degree, rewire: agents * degree // 2)  # noqa: ARG005
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
            number = int(place * others)  # among those that are not taken
            for agent in taken:
                number += agent <= number
            graph.add_edge(near, number)
    return graph


def check_degree(agents: int, degree: int) -> None:
    if degree >= agents:
        raise GraphError(
            f"graph.degree is {degree}, but {agents} agents have at most {agents - 1} neighbours each: "
            f"lower graph.degree or add agents"
        )


# Graphs from files. A list has one link `i j` per line, agents counted from 0. A matrix has one line per agent with a 1
# for every agent it hears, and is symmetric. Numbers are separated by spaces or commas; `#` starts a comment.

FILE_BYTES = 64 * 2**20  # bytes; a matrix of 5,000 agents has 50 MB

Line = tuple[str, list[int]]  # its place ("graph.txt line 3") and its numbers


@topologies.register("file")
def file(
    agents: int,
    _draw: Stream,
    *,
    path: Annotated[str, Field(min_length=1, description="text file: links `i j`, or a 0/1 matrix")],
) -> Graph:
    """Links from a text file: one `i j` per line, or a symmetric 0/1 matrix."""
    lines = read_lines(Path(path))
    # Only two lines of two numbers could be either; for two agents both readings allow the same single link.
    is_matrix = any(len(numbers) != 2 for _, numbers in lines) or (agents == 2 and len(lines) == 2)
    links = links_of_matrix(Path(path), lines, agents) if is_matrix else links_of_list(lines, agents)
    return from_links(agents, links)


def read_lines(path: Path) -> list[Line]:
    try:
        if path.stat().st_size > FILE_BYTES:
            raise GraphError(f"{path} has {path.stat().st_size} bytes; a graph file has at most {FILE_BYTES}")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise GraphError(f"cannot read graph file {path}: {reason}") from error
    lines: list[Line] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].replace(",", " ").split()
        where = f"{path} line {number}"
        if words:
            lines.append((where, [whole_number(word, where) for word in words]))
    if not lines:
        raise GraphError(f"graph file {path} has no links: write one `i j` per line, or a 0/1 matrix")
    return lines


def whole_number(word: str, where: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 10):
        raise GraphError(f"{where}: {word!r} is not an integer of 0 or more")
    return int(word)


def links_of_list(lines: list[Line], agents: int) -> list[tuple[int, int]]:
    for where, (i, j) in lines:
        if max(i, j) >= agents:
            raise GraphError(f"{where}: agent {max(i, j)} does not exist; {agents} agents are 0 to {agents - 1}")
        if i == j:
            raise GraphError(f"{where}: agent {i} is linked to itself; delete that line")
    return [(i, j) for _, (i, j) in lines]


def links_of_matrix(path: Path, lines: list[Line], agents: int) -> list[tuple[int, int]]:
    if len(lines) != agents:
        raise GraphError(f"{path} has a matrix of {len(lines)} lines, but there are {agents} agents")
    for i, (where, row) in enumerate(lines):
        if len(row) != agents:
            raise GraphError(f"{where}: {len(row)} numbers; a matrix of {agents} agents has {agents} per line")
        for j, entry in enumerate(row):
            if entry > 1:
                raise GraphError(f"{where}: entry {j} is {entry}; a matrix has only 0 and 1")
        if row[i]:
            raise GraphError(f"{where}: agent {i} is linked to itself; entry {i} must be 0")
    rows = [row for _, row in lines]
    for i, (where, row) in enumerate(lines):
        for j in range(i):
            if row[j] != rows[j][i]:
                raise GraphError(f"{where}: entry {j} is {row[j]}, but agent {j} has {rows[j][i]} for agent {i}")
    return [(j, i) for i, row in enumerate(rows) for j in range(i) if row[j]]
