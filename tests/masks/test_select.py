"""The top fraction: exact counts, ties to the lower index, one answer on every path."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from peermask.masks.select import _bracket, top_fraction, top_fraction_by_sort

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
