"""Values travel dense, sparse, on the base's support or on a mask, whichever is smallest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from wire_cases import random_bits

from peermask.errors import WireError
from peermask.wire.frame import Kind, decode_leaf, plan_leaf
from peermask.wire.history import History
from peermask.wire.schema import Leaf
from peermask.wire.sets import Cursor

SIZE = 400
LEAF = Leaf("weights", False, (300, 100))
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def sparse(density, purpose="support"):
    return np.where(random_bits(purpose, SIZE, density), np.float32(1.5), np.float32(0))


def trip(values, base=None, masks=None):
    history = None if base is None else History({"weights": base}, {})
    plan = plan_leaf(LEAF, values, history, masks or {})
    data = plan.encode()
    assert len(data) == plan.size
    back = decode_leaf(Cursor(data), LEAF, history, masks or {})
    assert back.tobytes() == values.tobytes()
    return plan


@given(arrays(np.float32, SIZE, elements=finite, fill=st.just(np.float32(0))))
def test_values_come_back_bit_for_bit(values):
    trip(values)


def test_minus_zero_keeps_its_sign():
    values = sparse(0.1)
    values[7] = np.float32(-0.0)
    assert np.signbit(values[7])
    trip(values)


def test_dense_values_are_four_bytes_each():
    plan = trip(np.ones(SIZE, np.float32))
    assert (plan.kind, plan.size) == (Kind.DENSE, 1 + 4 * SIZE)


def test_sparse_values_bring_their_positions():
    plan = trip(sparse(0.2))
    assert plan.kind is Kind.SPARSE
    assert plan.values_bytes == 4 * np.count_nonzero(sparse(0.2))


def test_positions_are_left_out_where_the_base_has_the_same():
    plan = trip(sparse(0.2) * 3, base=sparse(0.2))
    assert plan.kind is Kind.SPARSE_DELTA
    assert plan.size == 1 + len(LEAF.layers) + plan.values_bytes


def test_values_lie_on_a_mask_of_the_same_frame():
    plan = trip(sparse(0.2), masks={0: sparse(0.2) != 0})
    assert plan.kind is Kind.ON_MASK
    assert plan.size == 2 + plan.values_bytes


def test_a_mask_that_does_not_cover_the_values_is_not_used():
    assert trip(sparse(0.2), masks={0: sparse(0.2, "elsewhere") != 0}).kind is Kind.SPARSE


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_neither_sent_nor_taken(poison):
    values = np.ones(SIZE, np.float32)
    data = bytearray(plan_leaf(LEAF, values, None, {}).encode())
    values[5] = poison
    with pytest.raises(WireError, match="NaN or infinite"):
        plan_leaf(LEAF, values, None, {})
    data[1:] = values.tobytes()
    with pytest.raises(WireError, match="NaN or infinite"):
        decode_leaf(Cursor(bytes(data)), LEAF, None, {})


@pytest.mark.parametrize(
    ("leaf", "data", "message"),
    [
        (LEAF, "00", "kind 0"),
        (LEAF, "06", "kind 6"),
        (Leaf("mask", True, (4,)), "02", "kind 2"),
        (Leaf("mask", True, (4,)), "01", "names no history"),
        (LEAF, "04", "names no history"),
        (LEAF, "0500", "mask leaf 0"),
        (LEAF, "02" + "00" * 1599, "ends early"),
    ],
)
def test_impossible_leaves_are_refused(leaf, data, message):
    with pytest.raises(WireError, match=message):
        decode_leaf(Cursor(bytes.fromhex(data)), leaf, None, {})


HALF = Leaf("weights", False, (300, 100), is_half=True)


@pytest.mark.parametrize("density", [1.0, 0.2])
def test_half_precision_takes_two_bytes_a_value_and_comes_back(density):
    values = sparse(density).astype(np.float16)
    plan = plan_leaf(HALF, values, None, {})
    assert plan.values_bytes == 2 * np.count_nonzero(values)
    back = decode_leaf(Cursor(plan.encode()), HALF, None, {})
    assert back.dtype == np.float16
    assert back.tobytes() == values.tobytes()


def test_a_value_beyond_half_precision_is_named():
    values = np.full(SIZE, 65_504, np.float16)
    plan_leaf(HALF, values, None, {})
    with np.errstate(over="ignore"):
        values[3] = np.float32(65_520).astype(np.float16)
    with pytest.raises(WireError, match="beyond 65,504, where float16 ends"):
        plan_leaf(HALF, values, None, {})
