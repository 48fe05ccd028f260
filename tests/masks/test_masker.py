"""M_i(y), v = w m, and the straight-through gradient, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from peermask.errors import ConfigError
from peermask.masks.aggregation import aggregated_magnitude, agreement, fine_tune
from peermask.masks.masker import Masker, MaskOptions, RetentionDraw, kept_counts, retentions
from peermask.masks.scores import filter_rule, group_lasso_gradient, initial_scores, keep_sign, score_gradient
from peermask.masks.select import _bracket, top_fraction, top_fraction_by_sort
from peermask.models.architectures import alexnet
from peermask.models.layout import Layer, Layout, find_layout

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
    """Filters of layer a sum to 1.0 and 0.5, so the first two entries stay; linear layers are ranked by entry."""
    scores = torch.tensor([[-0.9, 0.1, 0.2, 0.3, 0.01, -0.03, 0.02]])
    mask = Masker(LAYOUT, FROZEN, MaskOptions(ranking="filter")).mask(scores, KEEP)
    assert mask.int().tolist() == [[1, 1, 0, 0, 0, 1, 0]]


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
    tuned = fine_tune(scores, gradient, votes, voters, 0.5)
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


# Few distinct values, so that ties are the rule.
magnitudes = st.lists(
    st.lists(st.sampled_from([0.0, 1e-30, 0.25, 0.5, 1.0, 1.5, 3e38]), min_size=7, max_size=7), min_size=1, max_size=4
).map(torch.tensor)


def test_keeps_the_largest_by_hand() -> None:
    mask = top_fraction(torch.tensor([[0.1, 0.9, 0.5, 0.7]]), torch.tensor([2]))
    assert mask.tolist() == [[False, True, False, True]]


def test_ties_go_to_the_lower_index() -> None:
    mask = top_fraction(torch.tensor([[0.5, 0.5, 0.9, 0.5]]), torch.tensor([2]))
    assert mask.tolist() == [[True, False, True, False]]


def test_each_row_keeps_its_own_number() -> None:
    mask = top_fraction(torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]), torch.tensor([1, 2]))
    assert mask.tolist() == [[True, False, False], [False, True, True]]


@given(magnitudes, st.data())
def test_equals_a_stable_sort(magnitude: Tensor, data: st.DataObject) -> None:
    counts = st.integers(1, magnitude.shape[1])
    keep = torch.tensor(data.draw(st.lists(counts, min_size=len(magnitude), max_size=len(magnitude))))
    mask = top_fraction(magnitude, keep)
    assert mask.sum(1).tolist() == keep.tolist()
    assert torch.equal(mask, top_fraction_by_sort(magnitude, keep))


@given(st.integers(0, 2**32), st.integers(1, 2000))
def test_equals_a_stable_sort_on_long_rows(seed: int, keep: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    magnitude = torch.randn(2, 2000, generator=generator).abs()
    counts = torch.tensor([keep, 2001 - keep])
    assert torch.equal(top_fraction(magnitude, counts), top_fraction_by_sort(magnitude, counts))


@pytest.mark.parametrize("keep", [1, 2, 4_000, 20_000, 36_000, 39_999, 40_000])
def test_equals_a_stable_sort_on_rows_long_enough_to_be_sampled(keep: int) -> None:
    generator = torch.Generator().manual_seed(keep)
    spread = torch.rand(40_000, generator=generator)
    magnitude = torch.stack([spread, spread.mul(50).round(), spread.sort().values, torch.ones(40_000)])
    counts = torch.full((4,), keep)
    assert torch.equal(top_fraction(magnitude, counts), top_fraction_by_sort(magnitude, counts))


def test_a_sample_meets_every_place_of_a_filter() -> None:
    """Filters of 25 taps, of which one is larger: a sample of every hundredth entry would see only that one."""
    rng = np.random.default_rng(0)
    values = rng.random(819_200, np.float32)
    values[::25] += 1
    for keep in (10_000, 245_760, 800_000):
        low, high = _bracket(values, keep)
        threshold = np.sort(values)[-keep]
        assert low <= threshold <= high
        assert np.count_nonzero((values >= low) & (values <= high)) < 0.1 * values.size


def test_both_zeros_are_equal() -> None:
    magnitude, keep = torch.tensor([[-0.0, 0.0, 1.0, -0.0]]), torch.tensor([2])
    assert torch.equal(top_fraction(magnitude, keep), top_fraction_by_sort(magnitude, keep))


def test_other_floats_than_those_of_32_bits() -> None:
    mask = top_fraction(torch.tensor([[0.1, 0.3, 0.2]]).double(), torch.tensor([2]))
    assert mask.tolist() == [[False, True, True]]


LAYER = Layer("conv", "conv", (2, 3), 0, 3)
MASK = torch.tensor([[True, False, False, True, True, False]])


def test_fil_off_changes_nothing() -> None:
    assert filter_rule(MASK, LAYER, 0).equal(MASK)


def test_fil_empties_filters_with_no_more_than_the_threshold() -> None:
    assert filter_rule(MASK, LAYER, 1).tolist() == [[False, False, False, True, True, False]]
    assert filter_rule(MASK, LAYER, 2).tolist() == [[False] * 6]


def test_fil_below_one_is_a_share_of_the_filter() -> None:
    # 0.5 of 3 entries is 1.5: one entry is too few, two are enough.
    assert filter_rule(MASK, LAYER, 0.5).tolist() == [[False, False, False, True, True, False]]


def test_group_lasso_gradient_is_the_direction_of_each_filter() -> None:
    scores = torch.tensor([[3.0, 4.0, 0.0, 0.0, 0.0, 0.0]])
    gradient = group_lasso_gradient(scores, Layout((LAYER,), ()))
    assert gradient[0].tolist() == pytest.approx([0.6, 0.8, 0.0, 0.0, 0.0, 0.0])


def test_group_lasso_gradient_agrees_with_autograd() -> None:
    scores = torch.tensor([[0.3, -0.2, 0.5, 1.0, -1.0, 0.1]], requires_grad=True)
    scores.view(2, 3).norm(dim=1).sum().backward()  # the sum of filter norms
    assert scores.grad is not None
    assert torch.allclose(scores.grad, group_lasso_gradient(scores.detach(), Layout((LAYER,), ())))
    assert math.isfinite(float(scores.grad.sum()))


ALEXNET = find_layout(alexnet((3, 32, 32), 10))


@pytest.mark.parametrize(
    ("retention", "total"), [(0.1, 281_555), (0.2, 384_435), (0.3, 487_315), (0.4, 590_195), (0.5, 693_075)]
)
def test_the_papers_network_with_linear_layers_at_nine_tenths(retention: float, total: int) -> None:
    assert int(kept_counts(ALEXNET, [retention], MaskOptions()).sum()) == total


def test_counts_are_rounded_not_floored_in_floats() -> None:
    assert kept_counts(ALEXNET, [0.3], MaskOptions())[0, -1] == 1728  # n - int((1 - k) n) gives 1729


def test_linear_layers_may_keep_what_the_agent_keeps() -> None:
    counts = kept_counts(ALEXNET, [0.25], MaskOptions(fc_keep="r"))[0].tolist()
    assert counts == [1200, 51_200, 204_800, 49_152, 480]


@given(st.floats(0, 1, exclude_min=True), st.integers(1, 10_000))
def test_at_least_one_weight_and_at_most_all(retention: float, size: int) -> None:
    layout = Layout((Layer("w", "conv", (1, size), 0, size),), ())
    count = int(kept_counts(layout, [retention], MaskOptions())[0, 0])
    assert 1 <= count <= size
    assert abs(count - retention * size) <= 1


def test_one_value_is_for_every_agent_and_a_list_for_each() -> None:
    assert retentions(0.3, 3, seed=0) == (0.3, 0.3, 0.3)
    assert retentions((0.1, 0.2), 2, seed=0) == (0.1, 0.2)


def test_a_list_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="retention: 2 values for 3 agents"):
        retentions((0.1, 0.2), 3, seed=0)


def test_draws_come_from_the_choices_and_do_not_depend_on_how_many_agents_there_are() -> None:
    draw = RetentionDraw(choices=(0.1, 0.4))
    many = retentions(draw, 50, seed=1)
    assert set(many) == {0.1, 0.4}
    assert retentions(draw, 10, seed=1) == many[:10]


def test_weights_make_a_choice_more_likely() -> None:
    drawn = retentions(RetentionDraw(choices=(0.1, 0.4), weights=(1.0, 99.0)), 200, seed=1)
    assert drawn.count(0.4) > 180


def layout_of(*sizes: int) -> Layout:
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    layers = zip(sizes, starts, strict=True)
    return Layout(tuple(Layer(f"{start}", "conv", (size, 1), start, 1) for size, start in layers), ())


def test_by_hand() -> None:
    """Two layers whose means are 2 and 1; two of four neighbours keep the first weight. A score of 0 has no sign."""
    scores, votes = torch.tensor([[1.0, -3.0, 0.0, 2.0]]), torch.tensor([[2, 4, 4, 0]])
    magnitude = aggregated_magnitude(scores, votes, torch.tensor([4]), 1.0, layout_of(2, 2))
    assert magnitude.tolist() == [[2.0, 5.0, 0.0, 2.0]]


@pytest.mark.parametrize("gain", [1.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_is_the_magnitude_of_the_equation(gain: float, dtype: torch.dtype) -> None:
    """|z + mean|z| · sign(z) · n| in double precision: five roundings, and a mean whose sum has ten in turn at most."""
    generator, layout = torch.Generator().manual_seed(0), layout_of(800, 5_003, 17)
    scores = torch.randn(3, 5_820, generator=generator)
    scores[1, ::7] = 0.0
    votes, voters = torch.randint(0, 5, scores.shape, generator=generator).to(dtype), torch.tensor([4, 0, 3])
    z, heard = scores.double(), gain * votes.double() / voters.clamp(min=1)[:, None]
    parts = zip(z.split(layout.sizes, 1), heard.split(layout.sizes, 1), strict=True)
    exact = torch.cat([(own + own.abs().mean(1, keepdim=True) * own.sign() * n).abs() for own, n in parts], 1)
    found = aggregated_magnitude(scores, votes, voters, gain, layout)
    torch.testing.assert_close(found.double(), exact, rtol=16 * 2.0**-24, atol=0)


def test_scores_that_are_not_numbers_change_no_others() -> None:
    scores = torch.tensor([[1.0, float("nan"), 0.0, -2.0]])
    found = aggregated_magnitude(scores, torch.ones(1, 4).int(), torch.tensor([1]), 1.0, layout_of(2, 2))
    assert found.isnan().tolist() == [[True, True, False, False]]
    assert found[0, 2:].tolist() == [0.0, 3.0]


def test_votes_of_another_width_are_an_error() -> None:
    with pytest.raises(RuntimeError):
        aggregated_magnitude(torch.ones(1, 4), torch.ones(1, 3).int(), torch.tensor([1]), 1.0, layout_of(4))
