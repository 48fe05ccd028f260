"""Positions as Rice-coded gaps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peermask.errors import WireError
from peermask.wire.bits import Cursor, pack
from peermask.wire.sets import decode_gaps, encode_gaps, gap_bits, rice_parameter


def test_three_flips_of_64_by_hand():
    # 77 (128 - 3) // 480 = 20, so k = 4. Gaps 2, 0, 36: low bits 0010 0000 0100, high 0, 0, 2 as 1 1 001.
    positions = np.array([2, 3, 40])
    assert rice_parameter(3, 64) == 4
    assert pack(encode_gaps(positions, 64)).hex() == "204c80"
    assert gap_bits(positions, 64) == 17


@pytest.mark.parametrize(("count", "size", "k"), [(1, 1, 0), (1, 2, 0), (64, 64, 0), (1, 1024, 9), (2048, 819200, 8)])
def test_the_parameter_is_the_power_of_two_under_the_mean_gap(count, size, k):
    assert rice_parameter(count, size) == k


@given(st.sets(st.integers(0, 4999), min_size=1))
def test_round_trip_and_length(chosen):
    positions = np.array(sorted(chosen))
    bits = np.concatenate(encode_gaps(positions, 5000))
    assert bits.size == gap_bits(positions, 5000)
    cursor = Cursor(pack([bits]))
    assert (decode_gaps(cursor, positions.size, 5000) == positions).all()
    assert cursor.position == bits.size


def test_a_position_outside_the_layer_is_refused():
    # k = 3 for 3 of 40; gaps 2, 0, 36: low bits 010 000 100, high 0, 0, 4 as 1 1 00001.
    with pytest.raises(WireError, match="position 40 lies outside a layer of 40"):
        decode_gaps(Cursor(bytes([0b01000010, 0b01100001])), 3, 40)


def test_too_few_gaps_are_refused():
    with pytest.raises(WireError, match="fewer found"):
        decode_gaps(Cursor(b"\x00" * 4), 3, 64)
