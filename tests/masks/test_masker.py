"""M_i(y), v = w m, and the straight-through gradient, worked by hand."""

from __future__ import annotations

import pytest
import torch

from peermask.masks.aggregation import aggregated_magnitude, agreement, fine_tuned
from peermask.masks.budget import MaskOptions
from peermask.masks.masker import Masker
from peermask.masks.scores import initial_scores, keep_sign, score_gradient
from peermask.models.layout import Layer, Layout

LAYOUT = Layout(
    (Layer("a", "conv", (2, 2), 0, 2), Layer("b", "linear", (1, 3), 4, 3)), (Layer("b.bias", "bias", (1,), 7, 3),)
)
FROZEN = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 0.5, 7.0])
KEEP = torch.tensor([[2, 1]])


def test_each_layer_is_ranked_by_itself_and_by_magnitude() -> None:
    scores = torch.tensor([[-0.9, 0.1, 0.2, 0.3, 0.01, -0.03, 0.02]])
    mask = Masker(LAYOUT, FROZEN, MaskOptions()).mask(scores, KEEP)
    assert mask.int().tolist() == [[1, 0, 0, 1, 0, 1, 0]]


def test_the_filter_rule_acts_after_the_ranking() -> None:
    scores = torch.tensor([[-0.9, 0.1, 0.2, 0.3, 0.01, -0.03, 0.02]])
    mask = Masker(LAYOUT, FROZEN, MaskOptions(filter_threshold=1)).mask(scores, KEEP)
    assert mask.int().tolist() == [[0] * 7]


def test_filters_are_ranked_by_their_sums() -> None:
    """Filters of layer a sum to 1.0 and 0.5, so the first two entries stay; layer b is one filter: its first entry."""
    scores = torch.tensor([[-0.9, 0.1, 0.2, 0.3, 0.01, -0.03, 0.02]])
    mask = Masker(LAYOUT, FROZEN, MaskOptions(ranking="filter")).mask(scores, KEEP)
    assert mask.int().tolist() == [[1, 1, 0, 0, 1, 0, 0]]


def test_a_model_is_the_kept_weights_and_all_biases() -> None:
    mask = torch.tensor([[True, False, False, True, False, True, False]])
    model = Masker(LAYOUT, FROZEN, MaskOptions()).model(mask, KEEP)
    assert model.tolist() == [[1.0, 0.0, 0.0, -2.0, 0.0, -0.5, 0.0, 7.0]]


def test_rescaling_divides_by_the_root_of_the_share_kept() -> None:
    mask = torch.tensor([[True, False, False, True, False, True, False]])
    model = Masker(LAYOUT, FROZEN, MaskOptions(rescale=True)).model(mask, KEEP)
    root = 2**0.5
    assert model[0].tolist() == pytest.approx([root, 0.0, 0.0, -2 * root, 0.0, -0.5 * 3**0.5, 0.0, 7.0])


def test_the_straight_through_gradient() -> None:
    """G = ∂f/∂v · w · sign(z): 2·3·(+1), 2·3·(−1), and 0 where z is 0."""
    gradient = score_gradient(torch.full((1, 3), 2.0), torch.full((3,), 3.0), torch.tensor([[0.5, -0.1, 0.0]]))
    assert gradient.tolist() == [[6.0, -6.0, 0.0]]


def test_fine_tuning_steps_where_neighbours_agree_eq_17() -> None:
    """z − η_ft G n with n = (1, ½, 0): 0.4 − 0.5·0.2·1, 0.4 − 0.5·0.2·½, 0.4; and nothing where nobody is heard."""
    scores, gradient = torch.full((2, 3), 0.4), torch.full((2, 3), 0.2)
    votes, voters = torch.tensor([[2, 1, 0], [0, 0, 0]], dtype=torch.uint8), torch.tensor([2, 0])
    tuned = fine_tuned(scores, gradient, votes, voters, 0.5)
    assert tuned[0].tolist() == pytest.approx([0.3, 0.35, 0.4])
    assert tuned[1].equal(scores[1])


def test_a_score_that_would_cross_zero_stops_there() -> None:
    kept = keep_sign(torch.tensor([[-0.2, 0.3, -0.4]]), torch.tensor([[0.1, 0.1, -0.1]]))
    assert kept[0].tolist() == pytest.approx([0.0, 0.3, -0.4])


def test_shared_scores_are_one_draw_and_independent_ones_are_not() -> None:
    shared = initial_scores(LAYOUT, "shared", (0, 3), seed=1)
    each = initial_scores(LAYOUT, "independent", (0, 3), seed=1)
    assert shared[0].equal(shared[1])
    assert not each[0].equal(each[1])
    assert each[1].equal(initial_scores(LAYOUT, "independent", (3,), seed=1)[0])
    assert bool((shared[:, :4].abs() <= 2**-0.5).all())


def test_the_magnitude_is_that_of_the_aggregation_tensor() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 7, generator=generator)
    scores[1, 2] = 0.0
    votes = torch.randint(0, 5, (3, 7), dtype=torch.uint8, generator=generator)
    voters = torch.tensor([4, 0, 3])
    for gain in (1.0, 2.0):
        magnitude, heard = aggregated_magnitude(scores, votes, voters, gain, LAYOUT), gain * agreement(votes, voters)
        for layer in LAYOUT.masked:
            z, n = scores[:, layer.span], heard[:, layer.span]
            y = z + z.abs().mean(dim=1, keepdim=True) * z.sign() * n
            assert torch.allclose(magnitude[:, layer.span], y.abs())
