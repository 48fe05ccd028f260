"""One round of MCE-PL on a layer of four weights, every number worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from four_weights import FROZEN, KEEP, LAYOUT, SCORES, FixedGradient, NoData, close, hear

from peermask.algorithms.contract import Agents, Clock, Setting
from peermask.algorithms.mce_pl import McePl, State, first_votes
from peermask.masks.aggregation import aggregated_magnitude, agreement
from peermask.masks.masker import Masker, MaskOptions
from peermask.masks.scores import scale_to_scores
from peermask.models.layout import Layer, Layout


def algorithm(**options: Any) -> McePl:
    masker = Masker(LAYOUT, FROZEN, MaskOptions())
    return McePl(McePl.Options(**options), Setting(FixedGradient(), masker, 0, (0.5,)))  # type: ignore[arg-type]


def start() -> State:
    votes = torch.tensor([[0, 1, 1, 0]], dtype=torch.uint8)
    return State(SCORES, torch.tensor([[False, True, True, False]]), votes, torch.tensor([1]), KEEP)


def test_aggregation_tensor_eq_11() -> None:
    """mean|z| is 0.25; it is added, with the sign of z, where the neighbours keep the weight."""
    votes = torch.tensor([[0, 2, 1, 0]], dtype=torch.uint8)
    y = aggregated_magnitude(SCORES, votes, torch.tensor([2]), 1.0, LAYOUT)
    assert close(y, [0.4, 0.55, 0.325, 0.1])


def test_agreement_is_the_open_mean_and_zero_where_nobody_is_heard() -> None:
    votes = torch.tensor([[0, 1, 2, 3], [1, 1, 1, 1]], dtype=torch.uint8)
    assert agreement(votes, torch.tensor([4, 0])).tolist() == [[0.0, 0.25, 0.5, 0.75], [1.0, 1.0, 1.0, 1.0]]
    assert agreement(torch.zeros(1, 2, dtype=torch.uint8), torch.tensor([0])).tolist() == [[0.0, 0.0]]


def test_learn_eq_14_15_16() -> None:
    """G = ∂f/∂v w sign(z); z½ = z − G; y½ adds mean|z½| = 0.35 at the old votes; two weights are kept."""
    method = algorithm()
    state, loss = method.learn(start(), NoData(), Clock(1, 10))
    assert close(state.gradient, [0.1, 0.2, -0.2, 0.1])
    assert close(state.scores, [0.3, -0.5, 0.4, -0.2])
    assert method.share(state)["mask"].int().tolist() == [[0, 1, 1, 0]]
    assert loss.tolist() == [1.0]


def test_the_forward_pass_uses_the_mask_of_the_round_before_eq_13() -> None:
    method = algorithm()
    method.learn(start(), NoData(), Clock(1, 10))
    network: Any = method.setting.network
    assert network.seen[0].tolist() == [[0.0, -1.0, 2.0, 0.0]]


def test_fuse_eq_17_18_19() -> None:
    """n = (1, ½, ½, 0); z = z½ − G n; mean|z| = 0.375; y = (0.575, −0.7875, 0.6875, −0.2)."""
    method = algorithm()
    state, _ = method.learn(start(), NoData(), Clock(1, 10))
    state = method.fuse(state, *hear([1, 0, 1, 0], [1, 1, 0, 0]), Clock(1, 10))
    assert close(state.scores, [0.2, -0.6, 0.5, -0.2])
    assert state.mask.int().tolist() == [[0, 1, 1, 0]]
    assert state.votes.tolist() == [[2, 1, 1, 0]]
    assert state.voters.tolist() == [2]
    assert state.gradient is None
    assert state.proposal is None
    assert method.local_model(state).tolist() == [[0.0, -1.0, 2.0, 0.0]]


def test_who_joins_starts_from_what_neighbours_keep() -> None:
    """n = (0, 0, 1, ½), mean|z| = .25; then mean|z| = .34375, and with the votes (.4, .3, .79375, .396875)."""
    method = algorithm()
    state = method.join(start(), *hear([0, 0, 1, 1], [0, 0, 1, 0]))
    assert close(state.scores, [0.4, -0.3, 0.45, -0.225])
    assert state.mask.int().tolist() == [[1, 0, 1, 0]]
    assert state.votes.tolist() == [[0, 0, 2, 1]]
    assert state.voters.tolist() == [2]


def test_what_neighbours_keep_can_enter_the_mask() -> None:
    """With all neighbours on the first weight alone, its |y| = 0.2 + 0.375 passes 0.5."""
    method = algorithm(aggregation_gain=1.0)
    state, _ = method.learn(start(), NoData(), Clock(1, 10))
    state = method.fuse(state, *hear([1, 0, 0, 0], [1, 0, 0, 0]), Clock(1, 10))
    # z = (0.2, -0.5, 0.4, -0.2), mean 0.325: y = (0.525, -0.5, 0.4, -0.2)
    assert state.mask.int().tolist() == [[1, 1, 0, 0]]


def test_relative_steps_learn_and_fine_tune_in_units_of_the_scores() -> None:
    """u = ½ (.2, 0, 0, .2) + G has rms .2, mean|z| is .25: û = 1.25 u; z½ = z − .4 û, then z½ − .4 û n."""
    method = algorithm(step="relative", lr=0.4, momentum=0.5)
    begun = replace(start(), velocity=torch.tensor([[0.2, 0.0, 0.0, 0.2]]))
    state, _ = method.learn(begun, NoData(), Clock(1, 10))
    assert close(state.velocity, [0.2, 0.2, -0.2, 0.2])
    assert close(state.scores, [0.3, -0.4, 0.3, -0.2])
    state = method.fuse(state, *hear([1, 0, 1, 0], [1, 1, 0, 0]), Clock(1, 10))
    assert close(state.scores, [0.2, -0.45, 0.35, -0.2])


def test_a_layer_without_a_gradient_does_not_move() -> None:
    """Its root mean square is 0, and is not divided by."""
    assert scale_to_scores(SCORES, torch.zeros(1, 4), LAYOUT).tolist() == [[0.0] * 4]


def test_a_separate_fine_tuning_rate() -> None:
    method = algorithm(lr_fine_tune=0.0)
    state, _ = method.learn(start(), NoData(), Clock(1, 10))
    state = method.fuse(state, *hear([1, 0, 1, 0], [1, 1, 0, 0]), Clock(1, 10))
    assert close(state.scores, [0.3, -0.5, 0.4, -0.2])


def test_fine_tuning_stops_a_score_at_zero_that_keeps_its_sign() -> None:
    """z½ − 5 G n = (−0.2, −1, 0.9, −0.2), of which the first was 0.3."""
    method = algorithm(lr_fine_tune=5.0, keep_sign=True)
    state, _ = method.learn(start(), NoData(), Clock(1, 10))
    state = method.fuse(state, *hear([1, 0, 1, 0], [1, 1, 0, 0]), Clock(1, 10))
    assert close(state.scores, [0.0, -1.0, 0.9, -0.2])


def test_weight_decay_and_group_lasso_act_in_learn_alone() -> None:
    """ω z adds 0.04 z-tenths; λ z/||z|| adds per filter of two: ||(0.4, −0.3)|| = 0.5."""
    method = algorithm(weight_decay=0.1, group_lasso=0.5)
    state, _ = method.learn(start(), NoData(), Clock(1, 10))
    root = 5**0.5 / 10
    expected = [
        0.3 - 0.04 - 0.5 * 0.8,
        -0.5 + 0.03 + 0.5 * 0.6,
        0.4 - 0.02 - 0.5 * 0.2 / root,
        -0.2 + 0.01 + 0.5 * 0.1 / root,
    ]
    assert close(state.scores, expected)
    assert close(state.gradient, [0.1, 0.2, -0.2, 0.1])


def test_the_cosine_schedule_halves_the_rate_half_way() -> None:
    state, _ = algorithm(schedule="cosine").learn(start(), NoData(), Clock(6, 10))
    assert close(state.scores, [0.35, -0.4, 0.3, -0.15])


@pytest.mark.parametrize(("how", "share"), [("common", 0.3), ("retention", 0.8), ("none", 0.0)])
def test_first_votes(how: Any, share: float) -> None:
    layout = Layout((Layer("c", "conv", (100, 100), 0, 100), Layer("l", "linear", (100, 100), 10_000, 100)), ())
    masker = Masker(layout, torch.ones(20_000), MaskOptions())
    agents = Agents((0, 1), torch.tensor([[8000, 9000], [8000, 9000]]), torch.tensor([0.8, 0.8]))
    votes = first_votes(masker, McePl.Options(first_votes=how), agents, seed=0)
    assert votes.shape == (2, 20_000)
    assert torch.equal(votes[0], votes[1])
    assert float(votes[:, :10_000].float().mean()) == pytest.approx(share, abs=0.02)
    assert float(votes[:, 10_000:].float().mean()) == pytest.approx(0.9 if share else 0.0, abs=0.02)


@pytest.mark.parametrize(
    ("guard", "voters", "votes"), [(1.5, 2, [0, 2, 2, 0]), (0.0, 3, [1, 2, 2, 1]), (None, 3, [1, 2, 2, 1])]
)
def test_with_a_guard_a_far_mask_is_not_believed(guard: float | None, voters: int, votes: list[int]) -> None:
    """m½ = (0, 1, 1, 0): two equal masks are at distance 0 and the opposite one at 2."""
    method = algorithm(guard=guard)
    state, _ = method.learn(start(), NoData(), Clock(1, 10))
    fused = method.fuse(state, *hear([0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]), Clock(1, 10))
    assert fused.voters.tolist() == [voters]
    assert fused.votes.tolist() == [votes]


def test_with_a_guard_the_step_goes_where_the_believed_agree_eq_17() -> None:
    """n = (0, 1, 1, 0) instead of (1/3, 2/3, 2/3, 1/3); z = z½ − G n."""
    method = algorithm(guard=1.5)
    state, _ = method.learn(start(), NoData(), Clock(1, 10))
    fused = method.fuse(state, *hear([0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]), Clock(1, 10))
    assert close(fused.scores, [0.3, -0.7, 0.6, -0.2])
