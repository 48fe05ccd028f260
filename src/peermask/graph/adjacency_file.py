"""A topology read from a file: a list of links, or a square matrix of 0 and 1.

A list has one link `i j` per line, agents counted from 0. A matrix has one line per agent with a 1 for every
agent it hears, and is symmetric. Numbers are separated by spaces or commas; `#` starts a comment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from peermask.errors import GraphError
from peermask.graph.shapes import from_links
from peermask.graph.topology import Graph, topologies
from peermask.streams import Stream

LARGEST = 64 * 2**20  # bytes; a matrix of 5,000 agents has 50 MB

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
        if path.stat().st_size > LARGEST:
            raise GraphError(f"{path} has {path.stat().st_size} bytes; a graph file has at most {LARGEST}")
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
