"""Distances, bounds, certificates, and how much masks have in common."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_cases import by_hand, kernel, some_layers, some_target, uniform

from peermask.errors import DataError
from peermask.paper.theory.construct import construct_masks
from peermask.paper.theory.measures import (
    Distances,
    certified_distance,
    climb,
    counterexample,
    distances,
    max_norms,
    overlap,
    random_inputs,
)
from peermask.paper.theory.networks import Masks, RandomNet, draw, outputs

# Theorem 1's bounds, checked by code that shares nothing with the library.


SIZES = st.floats(0, 1)
PAIRS = ((0, 2), (1, 3), (0, 1), (2, 3))  # f1 g1, f2 g2, f1 f2, g1 g2


def case(eps1: float, eps2: float, alpha_l: float, alpha_u: float, inf: float = 0, sup: float = 0) -> Distances:
    return Distances(1, eps1, eps2, alpha_l, alpha_u, inf, sup)


def test_bounds_worked_by_hand() -> None:
    near = case(0.01, 0.02, 0.1, 0.4)
    assert (near.upper, near.lower, near.lower_printed) == pytest.approx((0.43, 0.07, 0.07))
    assert near.printed_is_implied
    far = case(0.2, 0.1, 0.1, 0.4)  # ε = 0.3 > α_l = 0.1
    assert (far.upper, far.lower, far.lower_printed) == pytest.approx((0.7, 0.0, 0.1))
    assert not far.printed_is_implied


@settings(max_examples=25, deadline=None)
@given(eps1=SIZES, eps2=SIZES, slack=SIZES, more=SIZES)
def test_the_printed_form_is_the_valid_one_where_it_is_implied(
    eps1: float, eps2: float, slack: float, more: float
) -> None:
    alpha_l = eps1 + eps2 + slack  # so that ε1 + ε2 <= α_l
    seen = case(eps1, eps2, alpha_l, alpha_l + more)
    assert seen.printed_is_implied
    assert seen.lower_printed == pytest.approx(seen.lower, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 300), width=st.integers(1, 12))
def test_both_bounds_hold_for_constructed_masks_by_independent_code(seed: int, width: int) -> None:
    f1, f2 = some_target(seed), some_target(seed + 1)
    net = draw(f1, width, seed)
    m1, m2 = construct_masks(net, [f1, f2])
    images = uniform(seed + 2, 5, 1, 4, 4).abs()
    maps = [
        np.stack([by_hand(layers, image) for image in images.numpy()])
        for layers in (f1.layers, f2.layers, net.masked(m1), net.masked(m2))
    ]
    norm = [[float(np.abs(a - b).max()) for a, b in zip(maps[i], maps[j], strict=True)] for i, j in PAIRS]
    eps = max(norm[0]) + max(norm[1])
    assert max(norm[3]) <= eps + max(norm[2]) + 1e-12  # (25)
    assert min(norm[3]) >= min(norm[2]) - eps - 1e-12  # (26), the valid form
    seen = distances((f1.layers, f2.layers), (net.masked(m1), net.masked(m2)), images)
    expected = (max(norm[0]), max(norm[1]), min(norm[2]), max(norm[2]), min(norm[3]), max(norm[3]))
    assert (seen.eps1, seen.eps2, seen.alpha_l, seen.alpha_u, seen.inf, seen.sup) == pytest.approx(expected)
    assert seen.upper_holds
    assert seen.lower_holds


def test_the_printed_lower_bound_fails_in_the_counterexample() -> None:
    seen = counterexample()
    assert (seen.eps1, seen.eps2, seen.alpha_l, seen.alpha_u) == pytest.approx((0.1, 0.05, 0.05, 0.05))
    assert seen.inf == 0
    assert seen.lower_printed == pytest.approx(0.05)
    assert not seen.printed_is_implied
    assert not seen.printed_holds
    assert seen.lower == 0
    assert seen.lower_holds
    assert seen.upper_holds


def test_a_network_without_biases_gives_zero_for_zero_so_the_whole_cube_has_no_lower_bound() -> None:
    f, h = some_layers(1), some_layers(2)
    nothing = uniform(1, 1, 1, 4, 4) * 0
    seen = distances((f, h), (f, h), nothing)
    assert (seen.alpha_l, seen.inf) == (0, 0)


# No input can exceed the certificate, and for one layer some input attains it.


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500), corner=st.booleans())
def test_no_input_exceeds_it(seed: int, corner: bool) -> None:
    f, h = some_layers(seed, (2, 2, 3, 2)), some_layers(seed + 1, (2, 2, 3, 2))
    image = uniform(seed + 2, 2, 4, 4).abs()
    image = (image > 0.5).double() if corner else image
    apart = abs(by_hand(f, image.numpy()) - by_hand(h, image.numpy())).max()
    assert apart <= certified_distance(f, h) + 1e-12


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500))
def test_a_single_layer_attains_it(seed: int) -> None:
    (f,), (h,) = some_layers(seed, (2, 1)), some_layers(seed + 1, (2, 1))
    delta = (h - f)[0]  # [2, 3, 3]: the image that agrees with its sign, the other way round where that is more
    worst = max(float((delta * (delta > 0)).sum()), float(-(delta * (delta < 0)).sum()))
    assert certified_distance((f,), (h,)) == pytest.approx(worst)
    images = [(delta > 0).double().numpy(), (delta < 0).double().numpy()]
    seen = max(abs(by_hand((f,), x) - by_hand((h,), x)).max() for x in images)
    assert seen == pytest.approx(worst)


def test_two_layers_worked_by_hand() -> None:
    f = (kernel(0.5), kernel(0.5))
    h = (kernel(0.6), kernel(0.4))
    # layer 1: |0.1|·1 = 0.1, activation at most 0.5; layer 2: |0.1|·0.5 + 0.4·0.1
    assert certified_distance(f, h) == pytest.approx(0.09)
    assert certified_distance(f, f) == 0
    assert torch.equal(f[0], kernel(0.5))


# Inputs to measure on, and the climb towards the supremum.


def test_random_inputs_are_in_the_cube_half_of_them_at_corners() -> None:
    images = random_inputs((1, 4, 4), 10, seed=0)
    assert images.shape == (10, 1, 4, 4)
    assert 0 <= images.min() <= images.max() <= 1
    assert set(images[1::2].unique().tolist()) == {0.0, 1.0}
    assert torch.equal(images, random_inputs((1, 4, 4), 10, seed=0))


def test_the_climb_ends_between_what_was_seen_and_the_certificate() -> None:
    f, h = some_layers(1), some_layers(2)
    images = random_inputs((1, 5, 5), 20, seed=1)
    seen = float(max_norms(outputs(f, images) - outputs(h, images)).max())
    assert seen <= climb(f, h, images) <= certified_distance(f, h) + 1e-12


def test_the_climb_finds_the_supremum_of_a_single_weight() -> None:
    images = random_inputs((1, 1, 1), 1, seed=0)
    assert climb((kernel(0.5),), (kernel(0.2),), images) == pytest.approx(0.3)


def test_images_outside_the_cube_are_refused() -> None:
    f = some_layers(1)
    with pytest.raises(DataError, match=r"\[0, 16\]"):
        distances((f, f), (f, f), torch.tensor([0.0, 16.0]).reshape(2, 1, 1, 1))


# What two masks have in common, next to chance.


def masks_of(*kept: int) -> Masks:
    first = torch.zeros(4, dtype=torch.bool)
    first[list(kept)] = True
    return first.reshape(4, 1, 1, 1), first.reshape(1, 4, 1, 1)


def test_counts_worked_by_hand() -> None:
    net = RandomNet((kernel(0.5, 0.5, 0.5, -0.5), torch.ones(1, 4, 1, 1).double()), 4)
    common = overlap(net, masks_of(0, 1), masks_of(1, 2))
    assert (common.entries, common.usable, common.kept1, common.kept2, common.both) == (4, 3, 2, 2, 1)
    assert common.chance == pytest.approx(4 / 3)  # two blind picks of 2 out of 3
    assert common.spread**2 == pytest.approx(2 / 9)  # overlap is 1 with 2/3, 2 with 1/3
    assert common.chance_anywhere == 1
    assert common.jaccard == pytest.approx(1 / 3)
    assert common.sigmas == pytest.approx(-(1 / 3) / np.sqrt(2 / 9))


def test_a_mask_has_everything_in_common_with_itself() -> None:
    target = some_target(1)
    net = draw(target, 8, 0)
    (masks,) = construct_masks(net, [target])
    common = overlap(net, masks, masks)
    assert common.both == common.kept1 == common.kept2
    assert common.jaccard == 1
    assert common.sigmas > 0


def test_empty_masks() -> None:
    net = RandomNet((kernel(-0.5, -0.5, -0.5, -0.5), torch.ones(1, 4, 1, 1).double()), 4)
    common = overlap(net, masks_of(), masks_of())
    assert (common.jaccard, common.sigmas, common.chance) == (1, 0, 0)
