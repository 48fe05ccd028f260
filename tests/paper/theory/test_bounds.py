"""Theorem 1's bounds, checked by code that shares nothing with the library."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_cases import by_hand, some_layers, some_target, uniform

from peermask.paper.theory.construct import construct_masks
from peermask.paper.theory.measures import Distances, counterexample, distances
from peermask.paper.theory.networks import draw

SIZES = st.floats(0, 1)
PAIRS = ((0, 2), (1, 3), (0, 1), (2, 3))  # f1 g1, f2 g2, f1 f2, g1 g2


def case(eps1: float, eps2: float, alpha_l: float, alpha_u: float, inf: float = 0, sup: float = 0) -> Distances:
    return Distances("here", 1, eps1, eps2, alpha_l, alpha_u, inf, sup)


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
    seen = distances("here", (f1.layers, f2.layers), (net.masked(m1), net.masked(m2)), images)
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
    seen = distances("zero", (f, h), (f, h), nothing)
    assert (seen.alpha_l, seen.inf) == (0, 0)
