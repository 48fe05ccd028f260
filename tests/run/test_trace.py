"""Traces: who used which message, worked by hand; and that every trace of speeds can be played in its order."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peermask.errors import RunError
from peermask.graph.mixing import links_of
from peermask.run.trace import FUSE, LEARN, Trace, round_lengths, trace_of_speeds, waves

PATH = links_of(nx.path_graph(3))  # 0 hears 1, 1 hears 0 and 2, 2 hears 1
LENGTHS = np.array([[1.0] * 3, [2.0] * 3, [1.5] * 3])


def test_three_agents_by_hand() -> None:
    """Agent 0 ends its second round as agent 1 ends its first: the lower number is first, so 1 uses it, 0 does not."""
    trace, ends = trace_of_speeds(PATH, LENGTHS)
    assert ends.tolist() == [[1, 2, 3], [2, 4, 6], [1.5, 3, 4.5]]
    heard = {(i, k): trace.messages_used((i, k)) for i in range(3) for k in (1, 2, 3)}
    assert heard == {
        (0, 1): {}, (0, 2): {}, (0, 3): {1: 1},
        (1, 1): {0: 2, 2: 1}, (1, 2): {0: 3, 2: 2}, (1, 3): {0: 3, 2: 3},
        (2, 1): {}, (2, 2): {1: 1}, (2, 3): {1: 2},
    }  # fmt: skip
    assert trace.order == [
        (0, 1, LEARN), (1, 1, LEARN), (2, 1, LEARN),
        (0, 1, FUSE), (2, 1, FUSE), (0, 2, LEARN), (2, 2, LEARN), (0, 2, FUSE), (1, 1, FUSE), (2, 2, FUSE),
        (0, 3, LEARN), (1, 2, LEARN), (2, 3, LEARN), (0, 3, FUSE), (1, 2, FUSE), (2, 3, FUSE),
        (1, 3, LEARN), (1, 3, FUSE),
    ]  # fmt: skip
    assert list(waves(trace.order[:7])) == [([(0, 1), (1, 1), (2, 1)], [(0, 1), (2, 1)]), ([(0, 2), (2, 2)], [])]
    assert trace.last_uses.tolist() == [[3, 8, 17], [13, 15, 17], [8, 14, 17]]


def test_a_message_is_there_after_its_latency() -> None:
    trace, _ = trace_of_speeds(PATH, LENGTHS, latency=1.0)
    assert trace.messages_used((1, 1)) == {0: 1}
    assert trace.messages_used((2, 3)) == {1: 1}


def test_who_is_a_moment_late_is_waited_for_and_who_is_slow_is_not() -> None:
    """Three in a row that learn for 1, 1.2 and 3; a quarter of a round is waited.

    Round 1: 0 publishes at 1 and waits for 1, until 1.2. 1 publishes then, waits for 2 and goes on at 1.5, without it.
    Round 2: 0 publishes at 2.2, and waits until 2.45; 1 publishes at 2.7, waits for 2, which had published nothing in
    its round before, and goes on at 3, when 2 publishes its first: that is not round 2, so it has waited in vain.
    Round 3: 0 has published at 3.45 and waits until 3.7 for 1, which comes at 4.2 and does not wait for 2: it is two
    rounds behind.
    """
    lengths = np.array([[1.0] * 3, [1.2] * 3, [3.0] * 3])
    trace, ends = trace_of_speeds(PATH, lengths, grace=0.25)
    assert ends[:2].round(6).tolist() == [[1.2, 2.45, 3.7], [1.5, 3.0, 4.2]]
    assert ends[2].round(6).tolist() == [3.0, 6.0, 9.0]
    assert [trace.messages_used((0, k)) for k in (1, 2, 3)] == [{1: 1}, {1: 1}, {1: 2}]
    assert [trace.messages_used((1, k)) for k in (1, 2, 3)] == [{0: 1}, {0: 2}, {0: 3, 2: 1}]
    assert trace.messages_used((2, 1)) == {1: 2}


def test_agents_of_one_speed_hear_each_other_in_the_same_round() -> None:
    trace, ends = trace_of_speeds(PATH, np.ones((3, 4)), grace=0.01)
    assert (trace.heard == np.arange(1, 5)[:, None]).all()
    assert (ends == np.arange(1, 5)).all()
    both = [(agent, 1) for agent in range(3)]
    assert next(waves(trace.order)) == (both, both)


def test_lengths_of_rounds_follow_from_speeds_and_seed() -> None:
    assert round_lengths([1.0, 0.5], 3, 0.0, seed=0).tolist() == [[1, 1, 1], [2, 2, 2]]
    one, other = (round_lengths([1.0, 0.1], 50, 0.2, seed) for seed in (0, 1))
    assert np.array_equal(one, round_lengths([1.0, 0.1], 50, 0.2, 0))
    assert not np.array_equal(one, other)
    assert (one[0] >= 0.8).all()
    assert (one[0] <= 1.2).all()
    assert np.array_equal(one[:, :20], round_lengths([1.0, 0.1], 20, 0.2, 0))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    agents, rounds = draw(st.integers(1, 7)), draw(st.integers(1, 12))
    graph = nx.gnp_random_graph(agents, draw(st.floats(0, 1)), seed=draw(st.integers(0, 99)))
    speeds = draw(st.lists(st.sampled_from([0.1, 0.5, 1.0, 1.0, 3.0]), min_size=agents, max_size=agents))
    lengths = round_lengths(speeds, rounds, draw(st.sampled_from([0.0, 0.3])), draw(st.integers(0, 9)))
    latency, grace = draw(st.sampled_from([0.0, 0.7, 5.0])), draw(st.sampled_from([0.0, 0.1, 1.0]))
    return trace_of_speeds(links_of(graph), lengths, latency, grace)[0]


@given(trace=traces())
def test_every_half_comes_once_after_all_that_it_builds_on(trace: Trace) -> None:
    order, agents = trace.order, len(trace.links)
    assert sorted(order) == [
        (i, k, h) for i in range(agents) for k in range(1, trace.rounds + 1) for h in (LEARN, FUSE)
    ]
    places = {half: place for place, half in enumerate(order)}
    last = np.full((agents, trace.rounds), -1)
    for i, k, half in order:
        place = places[i, k, half]
        if half == LEARN:
            assert k == 1 or places[i, k - 1, FUSE] < place
            continue
        for j, used in {**trace.messages_used((i, k)), i: k}.items():
            assert places[j, used, LEARN] < place
            assert j == i or k == 1 or used >= trace.messages_used((i, k - 1)).get(j, 0)  # nobody forgets
            last[j, used - 1] = max(place, last[j, used - 1])
    assert np.array_equal(last, trace.last_uses)


@given(trace=traces())
def test_waves_are_the_order_with_no_agent_twice(trace: Trace) -> None:
    parts, done = list(waves(trace.order)), 0
    for learning, fusing in parts:
        part, done = trace.order[done : done + len(learning) + len(fusing)], done + len(learning) + len(fusing)
        assert [half[:2] for half in part if half[2] == LEARN] == learning
        assert [half[:2] for half in part if half[2] == FUSE] == fusing
        for events in (learning, fusing):
            assert len({agent for agent, _ in events}) == len(events)
        rounds = dict(learning)
        assert all(rounds.get(agent, number) == number for agent, number in fusing)  # none fuses before it learns
    assert done == len(trace.order)


def test_a_trace_that_builds_on_itself_is_one_line() -> None:
    heard = np.array([[2, 2, 0, 0], [2, 2, 0, 0]], np.int32)  # 0 uses round 2 of 1 in its round 1, and 1 that of 0
    with pytest.raises(RunError, match="agent 0 uses round 2 of agent 1 in its round 1, which builds on"):
        Trace(PATH, heard).order  # noqa: B018
