"""Mixing by hand on three agents, and what holds on every graph."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, tensor

from peermask.errors import GraphError
from peermask.graph import Graph, Mixing, build_graph, build_mixing, topologies
from peermask.graph.mixing import Ages


def graph_of(seed: int, agents: int) -> Graph:
    return build_graph("erdos-renyi", topologies["erdos-renyi"].options.model_validate({"p": 0.5}), agents, seed)


def random_mixing(seed: int, agents: int) -> Mixing:
    return build_mixing(graph_of(seed, agents), [1.0 + i for i in range(agents)])


def random_votes(seed: int, agents: int, width: int = 37) -> Tensor:
    return torch.rand(agents, width, generator=torch.Generator().manual_seed(seed)) < 0.4


@pytest.fixture
def path() -> Mixing:
    """0 - 1 - 2, with a half, a quarter and a quarter of the samples."""
    return build_mixing(nx.path_graph(3), [2, 1, 1])


VALUES = tensor([[1.0, 0.0], [2.0, 4.0], [6.0, 8.0]])


def test_a_path_of_three_by_hand(path: Mixing) -> None:
    votes = tensor([[1, 0], [1, 1], [1, 1]]).bool()
    assert path.degree.tolist() == [1, 2, 1]
    assert path.count_open(votes).tolist() == [[1, 1], [2, 1], [1, 1]]
    assert path.count_closed(votes).tolist() == [[2, 1], [3, 2], [2, 2]]
    assert path.count_open(votes).dtype == torch.uint8
    assert path.sum_closed(VALUES).tolist() == [[3, 4], [9, 12], [8, 12]]
    assert path.open_mean(VALUES).tolist() == [[2, 4], [3.5, 4], [2, 4]]
    assert path.closed_mean(VALUES).tolist() == [[1.5, 2], [3, 4], [4, 6]]
    assert path.server_mean(VALUES).tolist() == [[2.5, 3]] * 3
    assert path.uniform_server_mean(VALUES).tolist() == [[3, 4]] * 3


def test_metropolis_weights_of_a_path_and_a_star(path: Mixing) -> None:
    third = 1 / 3
    torch.testing.assert_close(
        path.metropolis.matrix, tensor([[2 * third, third, 0], [third, third, third], [0, third, 2 * third]])
    )
    star = build_mixing(nx.star_graph(3), [1] * 4)
    quarter = tensor([[1, 1, 1, 1], [1, 3, 0, 0], [1, 0, 3, 0], [1, 0, 0, 3]]) / 4
    torch.testing.assert_close(star.metropolis.matrix, quarter)
    torch.testing.assert_close(star.metropolis_mean(torch.eye(4)), quarter)


def test_an_agent_alone_hears_zero_and_keeps_its_own() -> None:
    alone = build_mixing(nx.empty_graph(1), [5])
    assert alone.open_mean(VALUES[:1]).tolist() == [[0, 0]]
    assert alone.closed_mean(VALUES[:1]).tolist() == VALUES[:1].tolist()
    assert alone.metropolis_mean(VALUES[:1]).tolist() == VALUES[:1].tolist()
    assert alone.count_open(VALUES[:1].bool()).tolist() == [[0, 0]]


def test_a_message_that_did_not_come_leaves_its_weight_to_the_own_one(path: Mixing) -> None:
    middle = path.rows(slice(1, 2)).restrict(tensor([0, 1]))
    assert middle.degree.tolist() == [1]
    torch.testing.assert_close(middle.metropolis.matrix, tensor([[1 / 3, 2 / 3]]))
    torch.testing.assert_close(middle.shares, tensor([2 / 3, 1 / 3]))
    assert middle.open_mean(VALUES[:2]).tolist() == [[1, 0]]
    with pytest.raises(GraphError, match="own message cannot be left out"):
        path.restrict(tensor([0, 1]))


@given(seed=st.integers(0, 10_000), agents=st.integers(1, 12))
def test_metropolis_is_symmetric_and_doubly_stochastic(seed: int, agents: int) -> None:
    mixing = random_mixing(seed, agents)
    links, weights = mixing.links.pairs, mixing.metropolis.matrix
    assert torch.equal(links, links.T)
    assert not links.diag().any()
    assert torch.equal(weights, weights.T)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(0), torch.ones(agents))
    torch.testing.assert_close(weights.sum(1), torch.ones(agents))
    torch.testing.assert_close(mixing.shares.sum(), tensor(1.0))


@given(seed=st.integers(0, 10_000), agents=st.integers(1, 12), data=st.data())
def test_a_node_gets_the_simulators_row_bit_for_bit(seed: int, agents: int, data: st.DataObject) -> None:
    mixing, i = random_mixing(seed, agents), data.draw(st.integers(0, agents - 1))
    votes = random_votes(seed, agents)
    values = torch.randn(agents, 37, generator=torch.Generator().manual_seed(seed))
    heard = list(mixing.closed)[i]
    node = mixing.rows(slice(i, i + 1)).restrict(heard)
    assert torch.equal(node.count_open(votes[heard]), mixing.count_open(votes)[i : i + 1])
    assert torch.equal(node.count_closed(votes[heard]), mixing.count_closed(votes)[i : i + 1])
    assert torch.equal(node.open_mean(values[heard]), mixing.open_mean(values)[i : i + 1])
    assert torch.equal(node.closed_mean(values[heard]), mixing.closed_mean(values)[i : i + 1])
    assert torch.equal(node.metropolis_mean(values[heard]), mixing.metropolis_mean(values)[i : i + 1])


@given(seed=st.integers(0, 10_000), agents=st.integers(2, 12), data=st.data())
def test_weights_sum_to_one_whatever_was_heard(seed: int, agents: int, data: st.DataObject) -> None:
    mixing, i = random_mixing(seed, agents), data.draw(st.integers(0, agents - 1))
    heard = tensor(sorted(data.draw(st.sets(st.integers(0, agents - 1))) | {i}))
    node = mixing.rows(tensor([i])).restrict(heard)
    torch.testing.assert_close(node.metropolis.matrix.sum(1), torch.ones(1))
    torch.testing.assert_close(node.shares.sum(), tensor(1.0))
    assert heard[node.own].tolist() == [i]


@given(seed=st.integers(0, 10_000), agents=st.integers(2, 12), data=st.data())
def test_renaming_agents_renames_results(seed: int, agents: int, data: st.DataObject) -> None:
    graph, votes = graph_of(seed, agents), random_votes(seed, agents)
    new_name = data.draw(st.permutations(range(agents)))
    renamed = nx.relabel_nodes(graph, dict(enumerate(new_name)))
    moved = torch.empty_like(votes)
    moved[tensor(new_name)] = votes
    before = build_mixing(graph, [1] * agents).count_open(votes)
    assert torch.equal(build_mixing(renamed, [1] * agents).count_open(moved)[tensor(new_name)], before)


def test_too_few_messages_are_an_error() -> None:
    mixing = build_mixing(nx.path_graph(4), [1] * 4)
    with pytest.raises(IndexError):
        mixing.count_closed(torch.ones(3, 8, dtype=torch.bool))


def test_counts_do_not_wrap_around_at_256() -> None:
    crowd = build_mixing(nx.star_graph(256), [1] * 257)
    everybody = torch.ones(257, 1, dtype=torch.bool)
    assert crowd.count_open(everybody)[0] == 256
    assert crowd.count_closed(everybody)[0] == 257


@pytest.mark.parametrize("shares", [[1, 1], [1, 1, 0], [1, 1, float("nan")]])
def test_every_agent_needs_a_share(shares: list[float]) -> None:
    with pytest.raises(GraphError, match="3 agents need one share"):
        build_mixing(nx.path_graph(3), shares)


STAR = build_mixing(nx.star_graph(3), [1, 1, 1, 1])  # 0 hears 1, 2 and 3
CENTRE = STAR.rows(slice(1))
AGES = Ages.of((4, 2, 0), STAR)
MASKS = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1]], dtype=torch.bool)


def test_what_an_age_is_worth() -> None:
    """In round 10 a message ages by 1 every two rounds, in round 100 every eleven."""
    assert [AGES.weight(10, number) for number in (13, 10, 9, 8, 7, 6, 1)] == [4, 4, 4, 2, 2, 0, 0]
    assert [AGES.weight(100, number) for number in (90, 89, 79, 78, 1)] == [4, 2, 2, 0, 0]
    assert [AGES.weight(number + 1, number) for number in range(1, 50)] == [4] * 49
    assert AGES.most == 16


def test_votes_by_hand() -> None:
    """In round 5: 1 sent in round 7, 2 in round 3, of age ⌊20/15⌋, 3 in round 1. Weights 4, 2, 0, own 4; halved: 2, 1,
    own 2."""
    columns, mixing = AGES.weigh(CENTRE, 5, {1: 7, 2: 3, 3: 1})
    assert columns == [0, 1, 2]
    heard = MASKS[columns]
    assert mixing.count_open(heard).tolist() == [[2, 3, 0, 1]]
    assert mixing.voters.tolist() == [3]
    assert mixing.count_closed(heard).tolist() == [[4, 3, 2, 1]]
    assert mixing.closed_voters.tolist() == [5]
    assert mixing.degree.tolist() == [2]


def test_means_by_hand() -> None:
    columns, mixing = AGES.weigh(CENTRE, 5, {1: 7, 2: 3, 3: 1})
    values = torch.tensor([[10.0], [1.0], [4.0]])
    assert columns == [0, 1, 2]
    assert mixing.open_mean(values).item() == pytest.approx((2 * 1 + 4) / 3)
    assert mixing.closed_mean(values).item() == pytest.approx((2 * 10 + 2 * 1 + 4) / 5)
    # Metropolis gives every link of the centre 1/4; half of that to the older one, and what is left to its own.
    assert mixing.metropolis_mean(values).item() == pytest.approx(10 * 5 / 8 + 1 / 4 + 4 / 8)


def test_new_messages_are_mixed_as_where_all_wait() -> None:
    columns, mixing = AGES.weigh(CENTRE, 5, {1: 5, 2: 5, 3: 6})
    assert columns == [0, 1, 2, 3]
    assert mixing.links.weights is None
    assert mixing.own_weight == 1
    assert torch.equal(mixing.count_open(MASKS), CENTRE.count_open(MASKS))
    values = torch.randn(4, 6)
    assert torch.equal(mixing.metropolis_mean(values), CENTRE.metropolis_mean(values))
    assert torch.equal(mixing.closed_mean(values), CENTRE.closed_mean(values))


def test_messages_that_together_count_too_little_are_not_used() -> None:
    """In round 40 a message of round 25 has age ⌊150/50⌋ and counts 1 of 8: two make a quarter, one does not. One of
    round 20 has age 4, and has expired."""
    ages = Ages.of((8, 4, 2, 1), STAR)
    assert ages.weigh(CENTRE, 40, {1: 25})[0] == [0]
    assert ages.weigh(CENTRE, 40, {1: 25, 2: 25})[0] == [0, 1, 2]
    assert ages.weigh(CENTRE, 40, {1: 25, 2: 40})[0] == [0, 1, 2]
    assert ages.weigh(CENTRE, 40, {1: 20, 2: 40})[0] == [0, 2]


def test_who_hears_nobody_keeps_its_own() -> None:
    columns, mixing = AGES.weigh(CENTRE, 5, {1: 1})
    assert columns == [0]
    assert mixing.voters.tolist() == [0]
    values = torch.tensor([[3.0]])
    assert mixing.closed_mean(values).item() == mixing.metropolis_mean(values).item() == 3.0


def test_counts_are_of_one_type_in_every_round() -> None:
    """A state is saved, and hashed, with it."""
    many = build_mixing(nx.star_graph(70), [1] * 71)
    ages = Ages.of((4, 1), many)
    centre = many.rows(slice(1))
    few, all_ = ages.weigh(centre, 2, {1: 1})[1], ages.weigh(centre, 2, dict.fromkeys(range(1, 71), 1))[1]
    leaf = ages.weigh(many.rows(slice(5, 6)), 2, {0: 1})[1]
    assert few.count_dtype == all_.count_dtype == leaf.count_dtype == torch.int16


def test_a_message_of_an_agent_that_is_missing_counts_half_as_much_each_round_and_expires() -> None:
    missing = Ages.of_missing(STAR)
    assert [missing.weight(9, number) for number in (12, 9, 8, 7, 6, 5, 4, 1)] == [16, 16, 8, 4, 2, 1, 0, 0]
    assert [missing.weight(1000, number) for number in (1000, 999, 996, 995)] == [16, 8, 1, 0]


def test_votes_by_hand_where_an_agent_is_missing() -> None:
    """In round 9, 1 and 2 sent this round, 3 two rounds ago: weights 16, 16, 4, own 16; by their factor 4: 4, 4, 1."""
    columns, mixing = Ages.of_missing(STAR).weigh(CENTRE, 9, {1: 9, 2: 9, 3: 7})
    assert columns == [0, 1, 2, 3]
    assert mixing.count_open(MASKS).tolist() == [[5, 9, 1, 5]]
    assert mixing.voters.tolist() == [9]
    columns, mixing = Ages.of_missing(STAR).weigh(CENTRE, 12, {1: 12, 2: 12, 3: 7})
    assert columns == [0, 1, 2]
    assert mixing.links.weights is None
    assert mixing.voters.tolist() == [2]
