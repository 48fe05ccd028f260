"""Links as lists and as matrices say the same, and take no more room than there are links."""

from __future__ import annotations

from math import ceil, log2
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, tensor

from peermask.graph import Base, Schedule, build_graph, build_mixing, schedules, topologies
from peermask.graph.links import Links
from peermask.graph.sums import count_by_rows, count_in_turns, sum_in_turns, weighted_sum


def pairs_of(seed: int, agents: int, messages: int) -> Tensor:
    return torch.rand(agents, messages, generator=torch.Generator().manual_seed(seed)) < 0.4


def test_a_list_by_hand() -> None:
    """0 hears 1 and 2, 1 hears nobody, 2 hears 0."""
    links = Links.between(np.array([2, 0, 0]), np.array([0, 2, 1]), 3)
    assert links.starts.tolist() == [0, 2, 2, 3]
    assert links.senders.tolist() == [1, 2, 0]
    assert [senders.tolist() for senders in links] == [[1, 2], [], [0]]
    assert links.degree.tolist() == [2, 0, 1]
    assert links.most == 2
    assert links.pairs.int().tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
    assert [(r.tolist(), s.tolist()) for r, s, _ in links.turns] == [([0, 2], [1, 0]), ([0], [2])]
    assert links.median(tensor([4.0, 2.0, 7.0])).tolist() == [3.0, 0.0, 7.0]
    assert links.by_receiver(tensor([5, 6, 7])).tolist() == [5, 5, 7]
    assert links.where(tensor([False, True, True])).pairs.int().tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    assert links.restrict(np.array([0, 2])).pairs.int().tolist() == [[0, 1], [0, 0], [1, 0]]


sizes = st.tuples(st.integers(0, 999), st.integers(1, 7), st.integers(1, 9))


@given(size=sizes, rows=st.slices(7) | st.lists(st.integers(0, 0), max_size=3).map(torch.LongTensor))
def test_some_receivers(size: tuple[int, int, int], rows: slice | Tensor) -> None:
    if isinstance(rows, slice) and rows.step is not None and rows.step < 0:
        return  # torch has none
    pairs = pairs_of(*size)
    some = Links.of(pairs).rows(rows)
    assert torch.equal(some.pairs, pairs[rows])


@given(size=sizes)
def test_pairs_give_what_lists_give(size: tuple[int, int, int]) -> None:
    pairs = pairs_of(*size)
    listed, paired = Links.of(pairs), Links.of(pairs)
    paired.is_paired = True  # as on a GPU
    values = torch.rand(pairs.shape, generator=torch.Generator().manual_seed(size[0]))
    assert torch.equal(listed.median(values[pairs]), paired.median(values))
    limit = listed.median(values[pairs])
    fewer = listed.where(values[pairs] <= listed.by_receiver(limit))
    assert torch.equal(fewer.pairs, paired.where(values <= paired.by_receiver(limit)).pairs)
    assert torch.equal(fewer.degree, fewer.pairs.sum(1))


@given(size=sizes)
def test_turns_add_what_rows_add(size: tuple[int, int, int]) -> None:
    pairs = pairs_of(*size)
    links = Links.of(pairs).weighted(np.linspace(0.1, 1.0, int(pairs.sum())))
    whole = links.weighted(np.arange(int(pairs.sum())) % 3 + 1.0)
    votes, values = pairs_of(size[0] + 1, size[2], 37), torch.randn(size[2], 37)
    for counted in (links.unweighted(), whole):
        times = counted.matrix.long() @ votes.long()
        assert torch.equal(count_by_rows(counted, votes, torch.uint8), times.to(torch.uint8))
    assert torch.equal(count_in_turns(links, votes, torch.uint8), links.pairs.long() @ votes.long())
    assert torch.equal(whole.voters, whole.matrix.long().sum(1))
    torch.testing.assert_close(sum_in_turns(links, values), weighted_sum(links, values))
    torch.testing.assert_close(weighted_sum(links, values), links.matrix @ values)


def test_many_agents_take_room_for_their_links_alone() -> None:
    options = topologies["random-regular"].options.model_validate({"degree": 4})
    mixing = build_mixing(build_graph("random-regular", options, 20_000, 0), [1] * 20_000)
    arrays = (mixing.links.starts, mixing.links.senders, mixing.metropolis.senders, mixing.metropolis.strengths)
    assert sum(array.nbytes for array in arrays) < 200 * 20_000
    one = mixing.rows(slice(7, 8))
    votes = torch.ones(1, 3, dtype=torch.bool).expand(20_000, 3)
    assert one.count_open(votes).tolist() == [[4, 4, 4]]
    assert one.metropolis.strengths.tolist() == [np.float32(0.2)] * 5
    assert not mixing.links.to("meta").is_paired


def test_how_far_the_farthest_is() -> None:
    """A path of three, and two agents that nobody of it reaches."""
    pairs = np.array([(0, 1), (1, 0), (1, 2), (2, 1), (3, 4), (4, 3)])
    links = Links.between(pairs[:, 0], pairs[:, 1], 6)
    assert [links.distance_from(agent) for agent in range(6)] == [2, 1, 2, 1, 1, 0]


def schedule_of(name: str, agents: int, seed: int = 0, graph: str = "erdos-renyi", **options: Any) -> Schedule:
    base = Base(graph, topologies[graph].options(), agents, seed)
    return Schedule(base, name, schedules[name].options.model_validate(options))


def pairs(links: Links) -> set[tuple[int, int]]:
    """Receiver, sender."""
    return set(zip(links.receivers.tolist(), links.senders.tolist(), strict=True))


@given(agents=st.integers(2, 40), round=st.integers(1, 50))
def test_one_peer_exponential(agents: int, round: int) -> None:
    hop = 2 ** ((round - 1) % ceil(log2(agents)))
    links = schedule_of("one-peer-exponential", agents).links(round)
    assert pairs(links) == {((sender + hop) % agents, sender) for sender in range(agents)}
    assert links.out_degree.tolist() == links.degree.tolist() == [1] * agents


def test_eight_agents_agree_exactly_after_three_rounds() -> None:
    """For a power of two, log2 N rounds of halves are the mean of all."""
    schedule, values = schedule_of("one-peer-exponential", 8), torch.arange(8.0)[:, None]
    for number in (1, 2, 3):
        values = build_mixing(schedule.links(number), [1] * 8).metropolis_mean(values)
    assert values.flatten().tolist() == [3.5] * 8


@given(
    agents=st.integers(2, 30),
    round=st.integers(1, 20),
    seed=st.integers(0, 99),
    among=st.sampled_from(["all", "graph"]),
)
def test_matchings(agents: int, round: int, seed: int, among: str) -> None:
    schedule = schedule_of("matching", agents, seed, among=among)
    found = pairs(schedule.links(round))
    assert all((j, i) in found for i, j in found)
    assert max(schedule.links(round).degree.tolist()) == 1
    alone = set(range(agents)) - {i for i, _ in found}
    if among == "all":
        assert len(alone) == agents % 2
    else:
        graph = schedule.base.graph()
        assert all(graph.has_edge(i, j) for i, j in found)
        assert not any(graph.has_edge(i, j) for i in alone for j in alone)  # no pair was left over
    again = schedule_of("matching", agents, seed, among=among)
    assert pairs(again.links(round)) == found  # whatever was asked for before


@given(agents=st.integers(2, 12), round=st.integers(1, 9), name=st.sampled_from(["matching", "one-peer-exponential"]))
def test_weights_are_halves_and_doubly_stochastic(agents: int, round: int, name: str) -> None:
    mixing = build_mixing(schedule_of(name, agents).links(round), [1] * agents)
    weights = mixing.metropolis.matrix
    assert set(weights.unique().tolist()) <= {0.0, 0.5, 1.0}
    assert weights.sum(0).tolist() == weights.sum(1).tolist() == [1.0] * agents
    for i in range(agents):
        assert weights[i, i] == (0.5 if mixing.degree[i] else 1.0)
    assert mixing.count_dtype == torch.uint8


@pytest.mark.parametrize("every", [1, 3])
def test_redrawn_graphs_are_connected_and_last(every: int) -> None:
    schedule = schedule_of("redrawn", 12, every=every)
    rounds = [frozenset(pairs(schedule.links(number))) for number in range(1, 13)]
    assert rounds[0] == pairs(Schedule(schedule.base).links(5))  # in the first round as if it stayed
    assert len(set(rounds)) == 12 // every
    for first in range(0, 12, every):
        assert len(set(rounds[first : first + every])) == 1
    for links in rounds:
        assert nx.is_connected(nx.Graph(list(links)))
    assert schedule.graphs(12) == 12 // every


@pytest.mark.parametrize("name", ["matching", "one-peer-exponential", "redrawn"])
def test_a_seed_and_a_round_are_all_it_takes(name: str) -> None:
    forwards, backwards = schedule_of(name, 9, 4), schedule_of(name, 9, 4)
    there = [pairs(forwards.links(number)) for number in range(1, 8)]
    assert [pairs(backwards.links(number)) for number in range(7, 0, -1)] == there[::-1]
    if name != "one-peer-exponential":
        assert [pairs(schedule_of(name, 9, 5).links(number)) for number in range(1, 8)] != there


def test_many_agents() -> None:
    links = schedule_of("matching", 65_535, graph="ring").links(3)
    assert len(links.senders) == 65_534
    heard, which = links.rows(slice(0, 100)).messages_heard
    assert len(heard) <= 100
    assert np.array_equal(heard[which], links.senders[: len(which)])


@pytest.mark.parametrize(
    ("name", "graph", "options", "expected"),
    [
        ("redrawn", "erdos-renyi", {}, 22),  # half of 10 * 9 / 2 pairs
        ("redrawn", "random-regular", {}, 20),  # 10 agents of degree 4
        ("matching", "complete", {"among": "graph"}, 45),
        ("matching", "complete", {"among": "all"}, 10),
        ("one-peer-exponential", "complete", {}, 10),
        ("matching", "ring", {"among": "graph"}, 10),
    ],
)
def test_expected_links_by_hand(name: str, graph: str, options: dict[str, Any], expected: int) -> None:
    assert schedule_of(name, 10, graph=graph, **options).expected_links == expected


def test_expected_links_of_a_fixed_graph() -> None:
    assert Schedule(Base("complete", topologies["complete"].options(), 10, 0)).expected_links == 45
