"""How much messages count by their age: small mixings worked by hand, and that new ones change nothing."""

from __future__ import annotations

import networkx as nx
import pytest
import torch

from peermask.graph import build_mixing
from peermask.graph.mixing import Ages

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
