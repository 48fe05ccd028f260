"""Sets of positions, each layer in its shortest code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from wire_cases import layered_masks, random_bits

from peermask.errors import WireError
from peermask.wire.cursor import Cursor
from peermask.wire.sets import Mode, decode_set, encode_set, plan_layer, plan_set, plan_set_within


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
    ("density", "mode"),
    [(0.0, Mode.EMPTY), (0.002, Mode.GAPS), (0.3, Mode.BLOCKS), (0.5, Mode.RAW), (0.998, Mode.GAPS), (1.0, Mode.EMPTY)],
)
def test_the_code_follows_the_density(density, mode):
    entry = plan_layer(random_bits("mode", 20_000, density)).entry
    assert entry[0] & 3 == mode
    assert bool(entry[0] & 4) == (density > 0.9)


def test_a_layer_without_members_is_one_byte():
    assert encode_set(plan_set(np.zeros(1000, bool), (900, 100)), (900, 100)) == b"\x00\x00"
    assert encode_set(plan_set(np.ones(1000, bool), (900, 100)), (900, 100)) == b"\x04\x04"


@given(layered_masks())
def test_planning_within_a_limit_gives_the_same_plan_or_nothing(drawn):
    layers, mask = drawn
    size = plan_set(mask, layers).size
    assert plan_set_within(mask, layers, size).size == size
    assert plan_set_within(mask, layers, size - 1) is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("4000", "not valid"),  # unknown bits
        ("07", "not valid"),  # a complemented raw layer
        ("0241", "not valid"),  # a centre of 65
        ("3201", "not valid"),  # a step parameter of 6
        ("0100", "0 positions"),
        ("0165", "101 positions"),
        ("01ffffffffff", "longer than"),
        ("01", "ends early"),
        ("03", "ends early"),
        ("0101" + "00", "fewer found"),
    ],
)
def test_impossible_tables_are_refused(table, message):
    with pytest.raises(WireError, match=message):
        decode_set(Cursor(bytes.fromhex(table)), (100,))


def test_bits_after_the_last_layer_must_be_zero():
    assert decode_set(Cursor(bytes.fromhex("03a0")), (3,)).tolist() == [True, False, True]
    with pytest.raises(WireError, match="not zero"):
        decode_set(Cursor(bytes.fromhex("03a1")), (3,))
