"""A second mask near the first: as few flips as the tolerance allows."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_cases import some_target, uniform

from peermask.paper.theory.construct import MOST_FLIPS, collapse, construct_masks, construct_near, nearest_subsets
from peermask.paper.theory.measures import overlap
from peermask.paper.theory.networks import draw


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
