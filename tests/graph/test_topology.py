"""Every topology is one connected, undirected graph of agents 0..N-1, and says why when it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peermask.errors import ConfigError, GraphError
from peermask.graph import Graph, build_graph, topologies


def build(name: str, agents: int, seed: int = 0, **options: Any) -> Graph:
    return build_graph(name, topologies[name].options(**options), agents, seed)


def links(graph: Graph) -> list[tuple[int, int]]:
    return sorted((min(i, j), max(i, j)) for i, j in graph.edges)


def test_the_known_topologies_are_listed() -> None:
    assert [entry.name for entry in topologies] == [
        "complete", "erdos-renyi", "file", "grid", "path", "random-regular", "ring", "small-world", "star",
    ]  # fmt: skip
    assert all(entry.summary for entry in topologies)


def test_small_shapes_by_hand() -> None:
    assert links(build("ring", 4)) == [(0, 1), (0, 3), (1, 2), (2, 3)]
    assert links(build("path", 3)) == [(0, 1), (1, 2)]
    assert links(build("star", 4)) == [(0, 1), (0, 2), (0, 3)]
    assert links(build("complete", 3)) == [(0, 1), (0, 2), (1, 2)]
    assert links(build("grid", 4)) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert links(build("grid", 4, rows=1)) == links(build("path", 4))
    assert links(build("grid", 6)) == links(build("grid", 6, rows=2))


@pytest.mark.parametrize("name", ["ring", "path", "star", "complete", "grid", "erdos-renyi"])
def test_one_agent_is_alone_and_two_are_linked(name: str) -> None:
    assert links(build(name, 1)) == []
    assert links(build(name, 2)) == [(0, 1)]


@given(
    name=st.sampled_from(["ring", "path", "star", "complete", "grid", "erdos-renyi", "random-regular", "small-world"]),
    agents=st.integers(5, 24),
    seed=st.integers(0, 2**63),
)
def test_every_graph_is_connected_without_loops(name: str, agents: int, seed: int) -> None:
    graph = build(name, agents, seed)
    assert sorted(graph.nodes) == list(range(agents))
    assert nx.is_connected(graph)
    assert nx.number_of_selfloops(graph) == 0
    assert links(graph) == links(build(name, agents, seed))


@given(agents=st.integers(3, 14), data=st.data(), seed=st.integers(0, 1000))
def test_a_regular_graph_gives_everybody_the_same_degree(agents: int, data: st.DataObject, seed: int) -> None:
    even = st.integers(2, agents - 1).filter(lambda degree: agents * degree % 2 == 0)
    degree = data.draw(even)
    assert {d for _, d in build("random-regular", agents, seed, degree=degree).degree} == {degree}


@given(rewire=st.floats(0, 1), seed=st.integers(0, 1000))
def test_rewiring_keeps_the_number_of_links(rewire: float, seed: int) -> None:
    assert build("small-world", 12, seed, degree=4, rewire=rewire).number_of_edges() == 24


def test_another_seed_draws_another_graph() -> None:
    for name in ("erdos-renyi", "random-regular", "small-world"):
        assert len({tuple(links(build(name, 20, seed))) for seed in range(5)}) == 5


def test_without_rewiring_a_small_world_is_a_ring_of_near_ones() -> None:
    assert links(build("small-world", 6, degree=2, rewire=0)) == links(build("ring", 6))
    assert links(build("small-world", 5, degree=4)) == links(build("complete", 5))


def test_the_chance_of_a_link_is_p() -> None:
    assert build("erdos-renyi", 40, p=1).number_of_edges() == 780
    assert 300 < build("erdos-renyi", 40, p=0.5).number_of_edges() < 480  # 390 expected, σ = 14


def test_the_drawn_graph_never_changes() -> None:
    assert links(build("erdos-renyi", 5, seed=1)) == [(0, 4), (1, 4), (2, 3), (3, 4)]


@pytest.mark.parametrize(
    ("name", "agents", "options", "message"),
    [
        ("ring", 0, {}, "agents is 0"),
        ("random-regular", 4, {}, "graph.degree is 4, but 4 agents have at most 3"),
        ("random-regular", 5, {"degree": 3}, "graph.degree is 3 for 5 agents: one of the two must be even"),
        ("small-world", 9, {"degree": 3}, "graph.degree is 3: small-world needs an even number"),
        ("small-world", 1, {}, "graph.degree is 4, but 1 agents"),
        ("grid", 10, {"rows": 3}, "graph.rows is 3, but 10 agents"),
    ],
)
def test_impossible_choices_say_what_to_change(name: str, agents: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        build(name, agents, **options)


def test_a_graph_that_stays_in_parts_names_who_is_cut_off() -> None:
    with pytest.raises(
        GraphError, match=r"parts after 100 draws; agents .* can reach nobody: raise graph.p \(now 0.001\)"
    ):
        build("erdos-renyi", 12, p=0.001)
    with pytest.raises(GraphError, match=r"3 parts after 100 draws; agents 1, .* cannot reach the rest: raise graph.d"):
        build("random-regular", 6, degree=1)


def test_a_disconnected_draw_is_drawn_again() -> None:
    assert nx.is_connected(build("erdos-renyi", 8, seed=3, p=0.25))


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ring'"):
        build("rign", 4)
    with pytest.raises(ValueError, match="retension"):
        build("ring", 4, retension=1)


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
