"""Sets of positions, each layer in its shortest code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from wire_cases import layered_masks, random_bits

from peermask.errors import WireError
from peermask.wire.bits import Cursor
from peermask.wire.sets import Code, decode_set, encode_set, plan_layer, plan_set, plan_set_within


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
