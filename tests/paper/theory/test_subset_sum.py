"""Which numbers add up to nearly this one: against every subset there is."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_cases import uniform
from torch import Tensor

from peermask.paper.theory.construct import closest_subsets

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
