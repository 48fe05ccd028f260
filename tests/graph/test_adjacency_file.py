"""A graph file is a list of links or a 0/1 matrix, and every mistake names file, line and value."""

from __future__ import annotations

from pathlib import Path

import pytest

from peermask.errors import GraphError
from peermask.graph import Graph, build_graph, topologies


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    return tmp_path / "graph.txt"


def read(path: Path, text: str, agents: int) -> Graph:
    path.write_text(text)
    return build_graph("file", topologies["file"].options.model_validate({"path": str(path)}), agents, seed=0)


@pytest.mark.parametrize(
    "text",
    ["# a path\n0 1\n\n1 2 # the other end\n", "0,1\n1, 2\n2 1\n", "0 1 0\n1 0 1\n0 1 0\n", "0,1,0\n1,0,1\n0,1,0"],
)
def test_lists_and_matrices_are_told_apart_by_content(graph_file: Path, text: str) -> None:
    assert sorted(read(graph_file, text, 3).edges) == [(0, 1), (1, 2)]


@pytest.mark.parametrize("text", ["0 1", "0 1\n1 0"])
def test_two_agents_have_one_link_either_way(graph_file: Path, text: str) -> None:
    assert list(read(graph_file, text, 2).edges) == [(0, 1)]


@pytest.mark.parametrize(
    ("text", "agents", "message"),
    [
        ("0 1\n1 x\n", 3, r"graph.txt line 2: 'x' is not an integer"),
        ("0 1\n1 -2\n", 3, r"graph.txt line 2: '-2' is not"),
        ("0 1\n1 3\n", 3, r"graph.txt line 2: agent 3 does not exist; 3 agents are 0 to 2"),
        ("# links\n1 1\n", 3, r"graph.txt line 2: agent 1 is linked to itself"),
        ("0 1 0\n1 0 1\n", 3, r"graph.txt has a matrix of 2 lines, but there are 3 agents"),
        ("0 1 0\n1 0\n0 1 0", 3, r"graph.txt line 2: 2 numbers"),
        ("0 2 0\n2 0 1\n0 1 0", 3, r"graph.txt line 1: entry 1 is 2"),
        ("0 1 0\n1 1 1\n0 1 0", 3, r"graph.txt line 2: agent 1 is linked to itself"),
        ("0 1 1\n1 0 1\n0 1 0", 3, r"graph.txt line 3: entry 0 is 0, but agent 0 has 1 for agent 2"),
        ("# nothing\n", 3, r"has no links"),
        ("0 1\n2 3\n", 5, r"file graph has 3 parts; agent 4 can reach nobody: add links"),
    ],
)
def test_mistakes_name_file_line_and_value(graph_file: Path, text: str, agents: int, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        read(graph_file, text, agents)


def test_a_missing_or_binary_file_is_one_clear_error(graph_file: Path) -> None:
    options = topologies["file"].options.model_validate({"path": str(graph_file)})
    with pytest.raises(GraphError, match=r"cannot read graph file .*graph.txt: No such file"):
        build_graph("file", options, 3, seed=0)
    graph_file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GraphError, match="not a text file"):
        build_graph("file", options, 3, seed=0)
