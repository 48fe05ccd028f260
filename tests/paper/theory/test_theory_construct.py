"""The masks: subset sums, the construction, and a second mask near the first."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_cases import by_hand, kernel, some_target, uniform
from torch import Tensor

from peermask.errors import ModelError
from peermask.paper.theory.construct import (
    MOST_FLIPS,
    closest_subsets,
    collapse,
    construct_masks,
    construct_near,
    nearest_subsets,
    out_of_reach,
    products,
    subsets,
)
from peermask.paper.theory.measures import overlap
from peermask.paper.theory.networks import RandomNet, Target, draw, outputs

# Which numbers add up to nearly this one: against every subset there is.


NUMBERS = st.floats(-1, 1, allow_subnormal=False)


def best_error(values: list[float], target: float) -> float:
    """By trying them all."""
    return min(
        abs(sum(v for v, keep in zip(values, kept, strict=True) if keep) - target)
        for kept in product((False, True), repeat=len(values))
    )


def errors(items: Tensor, kept: Tensor, targets: Tensor) -> Tensor:
    return ((items[:, None, :] * kept).sum(-1) - targets).abs()  # [P, T]


def test_three_numbers_worked_by_hand() -> None:
    items = torch.tensor([[0.5, -0.25, 0.1]], dtype=torch.float64)
    targets = torch.tensor([[0.26, 0.09, -1.0, 0.02]], dtype=torch.float64)
    kept = closest_subsets(items, torch.ones_like(items, dtype=torch.bool), targets)
    assert kept[0].int().tolist() == [[1, 1, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0]]


@settings(max_examples=40, deadline=None)
@given(values=st.lists(NUMBERS, min_size=0, max_size=9), targets=st.lists(NUMBERS, min_size=1, max_size=3))
def test_no_subset_is_nearer(values: list[float], targets: list[float]) -> None:
    items = torch.tensor([values], dtype=torch.float64)
    wanted = torch.tensor([targets], dtype=torch.float64)
    kept = closest_subsets(items, torch.ones_like(items, dtype=torch.bool), wanted)
    found = errors(items, kept, wanted)[0].tolist()
    assert found == pytest.approx([best_error(values, target) for target in targets], abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_problems_of_different_sizes_are_solved_together(seed: int) -> None:
    items, targets = uniform(seed, 6, 8), uniform(seed + 1, 6, 2)
    usable = uniform(seed + 2, 6, 8) > 0
    kept = closest_subsets(items, usable, targets)
    assert not (kept & ~usable[:, None, :]).any()
    for row in range(6):
        mine = items[row][usable[row]].tolist()
        expected = [best_error(mine, target) for target in targets[row].tolist()]
        assert errors(items, kept, targets)[row].tolist() == pytest.approx(expected, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_set_too_large_for_exact_search_does_better_than_its_exact_part_alone(seed: int) -> None:
    items, targets = uniform(seed, 3, 14), uniform(seed + 1, 3, 2)
    usable = torch.ones_like(items, dtype=torch.bool)
    part = usable.clone()
    part[:, 8:] = False
    searched = errors(items, closest_subsets(items, usable, targets, exact_items=8), targets)
    assert (searched <= errors(items, closest_subsets(items, part, targets), targets) + 1e-12).all()
    assert (searched >= errors(items, closest_subsets(items, usable, targets), targets) - 1e-12).all()


def test_forty_numbers_reach_a_target_to_seven_digits() -> None:
    items, targets = uniform(3, 2, 40), uniform(4, 2, 1)
    kept = closest_subsets(items, torch.ones_like(items, dtype=torch.bool), targets, exact_items=20)
    assert errors(items, kept, targets).max() < 1e-6


# The masks: as good as brute force finds, binary, and nothing of g changed.


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), weight=st.floats(-1, 1))
def test_no_mask_of_a_tiny_network_is_better(seed: int, weight: float) -> None:
    """Every one of the 2^6 masks of g, whether the proof would use it or not, run at x = 1."""
    target = Target((kernel(weight),))
    net = draw(target, width=3, seed=seed)
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)  # everything is proportional to x, so the sup is at x = 1
    errors = []
    for bits in product((False, True), repeat=6):
        masks = (torch.tensor(bits[:3]).reshape(3, 1, 1, 1), torch.tensor(bits[3:]).reshape(1, 3, 1, 1))
        errors.append(abs(float(outputs(net.masked(masks), one)) - weight))
    (built,) = construct_masks(net, [target])
    assert abs(float(outputs(net.masked(built), one)) - weight) == pytest.approx(min(errors), abs=1e-12)


def test_each_weight_has_the_best_subset_of_its_own_products() -> None:
    target = some_target(1, (2, 2), 3)
    net = draw(target, width=6, seed=5)
    (masks,) = construct_masks(net, [target])
    (made,) = collapse(net, masks)
    first, second = net.layers
    for o, c, y, x in product(range(2), range(2), range(3), range(3)):
        hidden = [h for h in range(12) if h % 2 == o and first[h, c, y, x] > 0]
        values = [float(second[o, h, 0, 0] * first[h, c, y, x]) for h in hidden]
        wanted = float(target.layers[0][o, c, y, x])
        best = min(
            abs(sum(v for v, keep in zip(values, kept, strict=True) if keep) - wanted)
            for kept in product((False, True), repeat=len(values))
        )
        assert abs(float(made[o, c, y, x]) - wanted) == pytest.approx(best, abs=1e-12)


def test_masks_are_binary_of_gs_shape_and_g_is_unchanged() -> None:
    targets = [some_target(1), some_target(2)]
    net = draw(targets[0], width=8, seed=0)
    before, copies = net.fingerprint(), [weight.clone() for weight in net.layers]
    for masks in construct_masks(net, targets):
        outputs(net.masked(masks), torch.ones(1, 1, 4, 4, dtype=torch.float64))
        assert [mask.shape for mask in masks] == [weight.shape for weight in net.layers]
        assert all(set(mask.int().unique().tolist()) <= {0, 1} for mask in masks)
        for masked, mask, weight in zip(net.masked(masks), masks, copies, strict=True):
            assert torch.equal(masked[mask], weight[mask])
            assert not masked[~mask].any()
    assert net.fingerprint() == before
    assert all(torch.equal(a, b) for a, b in zip(net.layers, copies, strict=True))


def test_the_relu_inside_a_pair_of_layers_lets_everything_through() -> None:
    target = some_target(3, (1, 3, 2))
    net = draw(target, width=10, seed=2)
    (masks,) = construct_masks(net, [target])
    image = uniform(9, 1, 5, 5).abs()
    through = by_hand(net.masked(masks), image.numpy())  # 4 layers with a ReLU after each but the last
    plain = by_hand(collapse(net, masks), image.numpy())  # 2 layers
    assert through == pytest.approx(plain, abs=1e-14)
    assert outputs(net.masked(masks), image[None])[0].numpy() == pytest.approx(through, abs=1e-14)


def test_the_masks_keep_only_what_the_proof_allows() -> None:
    target = some_target(4, (2, 3))
    net = draw(target, width=5, seed=1)
    (masks,) = construct_masks(net, [target])
    assert (net.layers[0][masks[0]] > 0).all()
    assert (masks[1].sum(0) <= 1).all()  # a hidden channel feeds one output channel
    used = masks[0].flatten(1).any(1)
    assert torch.equal(masks[1][:, :, 0, 0].any(0), used)


def test_a_wider_network_begins_with_the_narrower_one_so_no_weight_gets_worse() -> None:
    target = some_target(5)
    errors = []
    for width in (4, 8, 16):
        net = draw(target, width, seed=3)
        (masks,) = construct_masks(net, [target])
        pairs = zip(collapse(net, masks), target.layers, strict=True)
        errors.append(torch.cat([(made - wanted).abs().flatten() for made, wanted in pairs]))
    assert (errors[1] <= errors[0] + 1e-12).all()
    assert (errors[2] <= errors[1] + 1e-12).all()


def test_one_g_serves_both_agents_as_well_as_either_alone() -> None:
    one, two = some_target(1), some_target(2)
    net = draw(one, width=6, seed=4)
    together = construct_masks(net, [one, two])
    for masks, target in zip(together, (one, two), strict=True):
        (alone,) = construct_masks(net, [target])
        assert all(torch.equal(a, b) for a, b in zip(masks, alone, strict=True))


def test_subsets_read_back_what_was_chosen() -> None:
    target = some_target(6, (2, 2))
    net = draw(target, width=7, seed=0)
    (masks,) = construct_masks(net, [target])
    items, _ = products(*net.blocks()[0])
    (kept,) = subsets(net, masks)
    assert (items * kept).sum(1).reshape(2, 2, 3, 3).numpy() == pytest.approx(collapse(net, masks)[0].numpy())


def test_a_weight_beyond_all_its_products_is_out_of_reach() -> None:
    net = RandomNet((kernel(0.5, 0.5, -1.0), torch.tensor([0.4, -0.2, 0.9]).double().reshape(1, 3, 1, 1)), 3)
    assert [out_of_reach(net, Target((kernel(w),))) for w in (0.2, 0.21, -0.1, -0.11)] == [0, 1, 0, 1]


def test_masks_that_the_proof_does_not_allow_are_refused() -> None:
    target = some_target(1)
    net = draw(target, width=2, seed=0)
    (masks,) = construct_masks(net, [target])
    with pytest.raises(ModelError, match="first-layer entry is negative"):
        collapse(net, tuple(torch.ones_like(mask) for mask in masks))


def test_weights_of_g_are_uniform_and_the_same_for_a_seed() -> None:
    target = some_target(1)
    net = draw(target, width=400, seed=7)
    values = torch.cat([weight.flatten() for weight in net.layers])
    assert values.abs().max() <= 1
    assert float(values.mean()) == pytest.approx(0, abs=0.02)
    assert float((values**2).mean()) == pytest.approx(1 / 3, abs=0.01)
    assert draw(target, 400, 7).fingerprint() == net.fingerprint() != draw(target, 400, 8).fingerprint()


# A second mask near the first: as few flips as the tolerance allows.


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2000), tolerance=st.sampled_from([0.3, 0.05, 0.01]))
def test_no_smaller_number_of_flips_would_do(seed: int, tolerance: float) -> None:
    items, target = uniform(seed, 1, 7), uniform(seed + 1, 1)
    usable, start = uniform(seed + 2, 1, 7) > -0.5, uniform(seed + 3, 1, 7) > 0
    start &= usable
    kept = nearest_subsets(items, usable, target, start, tolerance)
    values, begin = items[0].tolist(), start[0].tolist()
    allowed = [(False, True) if free else (False,) for free in usable[0].tolist()]
    errors = {
        bits: abs(sum(v for v, keep in zip(values, bits, strict=True) if keep) - float(target))
        for bits in product(*allowed)
    }
    flips = {bits: sum(a != b for a, b in zip(bits, begin, strict=True)) for bits in errors}
    good = [flips[bits] for bits, error in errors.items() if error <= tolerance and flips[bits] <= MOST_FLIPS]
    found = tuple(kept[0].tolist())
    if good:
        assert errors[found] <= tolerance + 1e-12
        assert flips[found] == min(good)
    else:
        assert errors[found] == pytest.approx(min(errors.values()), abs=1e-12)


def test_a_near_mask_shares_more_and_still_meets_the_tolerance() -> None:
    one, two = some_target(1), some_target(2)
    net = draw(one, 24, 0)
    m1, m2 = construct_masks(net, [one, two])
    near = construct_near(net, two, m1, tolerance=0.01)
    assert overlap(net, m1, near).jaccard > overlap(net, m1, m2).jaccard + 0.2
    for made, wanted in zip(collapse(net, near), two.layers, strict=True):
        assert (made - wanted).abs().max() <= 0.01


def test_asked_for_itself_nothing_flips() -> None:
    target = some_target(1)
    net = draw(target, 24, 0)
    (masks,) = construct_masks(net, [target])
    same = construct_near(net, target, masks, tolerance=0.01)
    assert all(torch.equal(a, b) for a, b in zip(masks, same, strict=True))
