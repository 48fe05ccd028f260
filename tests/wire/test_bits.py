"""Numbers side by side as bits come back as they went in."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from peermask.wire.bits import fixed_width, pack, read_fixed_width, read_unary, unary


def integers(values):
    return np.array(values, np.int64)


def test_numbers_put_their_top_bit_first():
    assert fixed_width(integers([5, 2]), 3).tolist() == [1, 0, 1, 0, 1, 0]
    assert unary(integers([0, 2, 1])).tolist() == [1, 0, 0, 1, 0, 1]


def test_bytes_fill_from_the_top_and_end_with_zeros():
    assert pack([np.array([1, 0], np.uint8), np.array([1], np.uint8)]) == b"\xa0"
    assert pack([]) == b""


@given(st.integers(1, 20), st.lists(st.integers(0, 2**20 - 1), max_size=20))
def test_fixed_width_round_trip(width, values):
    kept = integers(values) & ((1 << width) - 1)
    assert (read_fixed_width(fixed_width(kept, width), width) == kept).all()


@given(st.lists(st.integers(0, 200), max_size=30))
def test_unary_round_trip(values):
    assert read_unary(unary(integers(values)), len(values)).tolist() == values


def test_unary_with_too_few_ones_is_nothing():
    assert read_unary(np.array([0, 1, 0], np.uint8), 2) is None
