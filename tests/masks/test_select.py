"""The top fraction: exact counts, ties to the lower index, one answer on every path."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from peermask import compiled
from peermask.masks.select import _bracket, top_fraction, top_fraction_by_sort
from twins import by_both

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


@given(st.integers(0, 2**32), st.integers(1, 300), st.data())
def test_compiled_loops_choose_the_same(seed: int, size: int, data: st.DataObject) -> None:
    """Few values, so that many tie, or many."""
    keep = torch.tensor([data.draw(st.integers(1, size))])
    steps = data.draw(st.sampled_from([1, 3, 2**20]))
    magnitude = torch.randint(0, steps, (1, size), generator=torch.Generator().manual_seed(seed)) / steps
    fast, slow = by_both(lambda: top_fraction(magnitude, keep))
    assert torch.equal(fast, slow)


@pytest.mark.parametrize("keep", [1, 4_000, 30_000, 90_000, 100_003])
def test_compiled_loops_choose_the_same_of_a_row_that_is_sampled(keep: int) -> None:
    spread = torch.rand(100_003, generator=torch.Generator().manual_seed(keep))
    magnitude = torch.stack(
        [spread, spread.mul(50).round(), spread.sort().values, torch.zeros(100_003), 1e-40 * spread]
    )
    fast, slow = by_both(lambda: top_fraction(magnitude, torch.full((5,), keep)))
    assert torch.equal(fast, slow)


def test_a_bracket_without_the_threshold_is_no_answer() -> None:
    pytest.importorskip("numba")
    from peermask.kernels.select_numba import top_of_row

    bits, mask = np.arange(20, dtype=np.float32).view(np.int32), np.zeros(20, bool)
    low, high = np.array([4.0, 9.0], np.float32).view(np.int32)
    assert not top_of_row(bits, 10, low, high, mask)  # the tenth largest is 10
    assert not top_of_row(bits, 17, low, high, mask)  # 3
    assert top_of_row(bits, 11, low, high, mask)
    assert mask.tolist() == [False] * 9 + [True] * 11


@pytest.mark.parametrize("entries", [[-0.0, 0.0, 1.0, -0.0], [float("nan"), 1.0, 2.0, 3.0]])
def test_entries_whose_bits_have_another_order(entries: list[float]) -> None:
    fast, slow = by_both(lambda: top_fraction(torch.tensor([entries]), torch.tensor([2])))
    assert torch.equal(fast, slow)


def test_other_floats_than_those_of_32_bits() -> None:
    with patch.object(compiled, "LEAST", 1):
        mask = top_fraction(torch.tensor([[0.1, 0.3, 0.2]]).double(), torch.tensor([2]))
    assert mask.tolist() == [[False, True, True]]
