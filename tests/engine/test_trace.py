"""Traces: who used which message, worked by hand; and that every trace of speeds can be played in its order."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peermask.engine.trace import Trace, round_ends, trace_of, waves
from peermask.errors import RunError
from peermask.graph.mixing import links_of

PATH = links_of(nx.path_graph(3))  # 0 hears 1, 1 hears 0 and 2, 2 hears 1
ENDS = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.5, 3.0, 4.5]])


def test_three_agents_by_hand() -> None:
    """Agent 0 ends its second round as agent 1 ends its first: the lower number is first, so 1 uses it, 0 does not."""
    trace = trace_of(PATH, ENDS)
    heard = {(i, k): trace.used((i, k)) for i in range(3) for k in (1, 2, 3)}
    assert heard == {
        (0, 1): {}, (0, 2): {}, (0, 3): {1: 1},
        (1, 1): {0: 2, 2: 1}, (1, 2): {0: 3, 2: 2}, (1, 3): {0: 3, 2: 3},
        (2, 1): {}, (2, 2): {1: 1}, (2, 3): {1: 2},
    }  # fmt: skip
    assert trace.order == [(0, 1), (2, 1), (0, 2), (1, 1), (0, 3), (2, 2), (1, 2), (2, 3), (1, 3)]
    assert list(waves(trace.order[:3])) == [[(0, 1), (2, 1)], [(0, 2)]]
    assert trace.last_uses.tolist() == [[-1, 3, 8], [5, 7, -1], [3, 6, 8]]


def test_a_message_is_there_after_its_latency() -> None:
    trace = trace_of(PATH, ENDS, latency=1.0)
    assert trace.used((1, 1)) == {0: 1}
    assert trace.used((2, 3)) == {1: 1}


def test_ends_of_rounds_follow_from_speeds_and_seed() -> None:
    assert round_ends([1.0, 0.5], 3, 0.0, seed=0).tolist() == [[1, 2, 3], [2, 4, 6]]
    one, other = (round_ends([1.0, 0.1], 50, 0.2, seed) for seed in (0, 1))
    assert np.array_equal(one, round_ends([1.0, 0.1], 50, 0.2, 0))
    assert not np.array_equal(one, other)
    lengths = np.diff(one, axis=1)
    assert (lengths[0] >= 0.8).all()
    assert (lengths[0] <= 1.2).all()
    assert np.array_equal(one[:, :20], round_ends([1.0, 0.1], 20, 0.2, 0))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    agents, rounds = draw(st.integers(1, 7)), draw(st.integers(1, 12))
    graph = nx.gnp_random_graph(agents, draw(st.floats(0, 1)), seed=draw(st.integers(0, 99)))
    speeds = draw(st.lists(st.sampled_from([0.1, 0.5, 1.0, 1.0, 3.0]), min_size=agents, max_size=agents))
    ends = round_ends(speeds, rounds, draw(st.sampled_from([0.0, 0.3])), draw(st.integers(0, 9)))
    return trace_of(links_of(graph), ends, draw(st.sampled_from([0.0, 0.7, 5.0])))


@given(trace=traces())
def test_every_round_comes_once_after_all_that_it_builds_on(trace: Trace) -> None:
    order, agents = trace.order, len(trace.links)
    assert sorted(order) == [(i, k) for i in range(agents) for k in range(1, trace.rounds + 1)]
    places = {event: place for place, event in enumerate(order)}
    last = np.full((agents, trace.rounds), -1)
    for (i, k), place in places.items():
        assert k == 1 or places[i, k - 1] < place
        for j, used in trace.used((i, k)).items():
            assert places[j, used] < place
            assert k == 1 or used >= trace.used((i, k - 1)).get(j, 0)  # nobody forgets
            last[j, used - 1] = max(place, last[j, used - 1])
    assert np.array_equal(last, trace.last_uses)


@given(trace=traces())
def test_waves_are_the_order_with_no_agent_twice(trace: Trace) -> None:
    parts = list(waves(trace.order))
    assert [event for wave in parts for event in wave] == trace.order
    for wave in parts:
        assert len({agent for agent, _ in wave}) == len(wave)


def test_a_trace_that_builds_on_itself_is_one_line() -> None:
    heard = np.array([[1, 1, 0, 0]], np.int32)  # 0 uses round 1 of 1, and 1 round 1 of 0
    with pytest.raises(RunError, match="agent 0 uses round 1 of agent 1 in its round 1, which builds on"):
        Trace(PATH, heard).order  # noqa: B018
