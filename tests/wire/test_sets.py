"""Bits, positions and gaps: coded and read again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_cases import layered_masks, random_bits

from peermask.errors import WireError
from peermask.wire.sets import (
    Code,
    Cursor,
    decode_gaps,
    decode_set,
    encode_gaps,
    encode_set,
    fixed_width,
    gap_bits,
    pack,
    plan_layer,
    plan_set,
    plan_set_within,
    positions,
    read_fixed_width,
    read_unary,
    rice_parameter,
    unary,
)


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


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 800, 5_003])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.09, 0.5, 1.0])
def test_they_are_those_of_numpy(size: int, share: float) -> None:
    mask = np.random.default_rng(size).random(size) < share
    assert positions(mask).tolist() == np.flatnonzero(mask).tolist()
    assert positions(mask[3:]).tolist() == np.flatnonzero(mask[3:]).tolist()  # memory that is not aligned
    assert positions(mask[::2]).tolist() == np.flatnonzero(mask[::2]).tolist()  # nor in one piece


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


@given(layered_masks())
def test_every_boolean_vector_comes_back(drawn):
    layers, mask = drawn
    plan = plan_set(mask, layers)
    data = encode_set(plan, layers)
    assert len(data) == plan.size
    cursor = Cursor(data)
    assert (decode_set(cursor, layers) == mask).all()
    assert cursor.at_end


@given(layered_masks())
def test_never_longer_than_one_bit_per_weight_and_a_byte_per_layer(drawn):
    layers, mask = drawn
    assert plan_set(mask, layers).size <= len(layers) + (mask.size + 7) // 8


@pytest.mark.parametrize(
    ("density", "code"),
    [
        (0.0, Code.EMPTY),
        (0.002, Code.ONES),
        (0.3, Code.ONES),
        (0.5, Code.BITS),
        (0.7, Code.ZEROS),
        (0.998, Code.ZEROS),
        (1.0, Code.FULL),
    ],
)
def test_the_code_follows_the_density(density, code):
    assert plan_layer(random_bits("code", 20_000, density)).entry[0] == code


def test_gaps_must_be_shorter_than_plain_bits():
    # 0 and 3 of 8: 77 * 14 // 320 = 3, k = 1, 2 * 2 + 1 bits and two bytes against 8 bits and one byte.
    assert plan_layer(np.isin(np.arange(8), [0, 3])).entry == b"\x04"
    # 0 and 3 of 16: 77 * 30 // 320 = 7, k = 2, 2 * 3 bits and two bytes against 16 bits and one byte.
    assert plan_layer(np.isin(np.arange(16), [0, 3])).entry == b"\x02\x02"


def test_a_layer_without_members_is_one_byte():
    assert encode_set(plan_set(np.zeros(1000, bool), (900, 100)), (900, 100)) == b"\x00\x00"
    assert encode_set(plan_set(np.ones(1000, bool), (900, 100)), (900, 100)) == b"\x01\x01"


@given(layered_masks())
def test_planning_within_a_limit_gives_the_same_plan_or_nothing(drawn):
    layers, mask = drawn
    size = plan_set(mask, layers).size
    assert plan_set_within(mask, layers, size).size == size
    assert plan_set_within(mask, layers, size - 1) is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("05", "entry 0x05 is not one of 0 to 4"),
        ("ff", "entry 0xff"),
        ("0200", "0 positions"),
        ("0365", "101 positions"),
        ("02ffffffffff", "longer than"),
        ("02", "ends early"),
        ("04", "ends early"),
        ("0201" + "00", "fewer found"),
    ],
)
def test_impossible_tables_are_refused(table, message):
    with pytest.raises(WireError, match=message):
        decode_set(Cursor(bytes.fromhex(table)), (100,))


def test_bits_after_the_last_layer_must_be_zero():
    assert decode_set(Cursor(bytes.fromhex("04a0")), (3,)).tolist() == [True, False, True]
    with pytest.raises(WireError, match="not zero"):
        decode_set(Cursor(bytes.fromhex("04a1")), (3,))
