"""Many positions as enumerated blocks of 64."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_cases import layered_masks, random_bits

from peermask.errors import WireError
from peermask.wire.bits import pack
from peermask.wire.blocks import (
    BLOCK,
    RANK_WIDTHS,
    cut,
    decode_blocks,
    encode_blocks,
    from_steps,
    rank,
    to_steps,
    unrank,
)
from peermask.wire.cursor import Cursor


def block_of(*positions):
    bits = np.zeros(BLOCK, bool)
    bits[list(positions)] = True
    return np.packbits(bits)[None]  # [1, 8]


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ((), 0),
        ((0,), 0),
        ((63,), 63),
        ((0, 1), 0),
        ((0, 2), 1),
        ((1, 2), 2),
        ((3, 10, 63), 3 + comb(10, 2) + comb(63, 3)),
    ],
)
def test_the_rank_is_a_sum_of_binomials(positions, expected):
    assert rank(block_of(*positions)).tolist() == [expected]


def test_the_last_of_all_ways_has_the_largest_rank():
    assert rank(block_of(*range(32, 64))).tolist() == [comb(64, 32) - 1]


def test_rank_widths_hold_every_rank():
    assert RANK_WIDTHS.tolist() == [(comb(64, c) - 1).bit_length() for c in range(65)]
    assert (RANK_WIDTHS[0], RANK_WIDTHS[1], RANK_WIDTHS[2], RANK_WIDTHS[32]) == (0, 6, 11, 61)


@given(st.binary(min_size=8, max_size=8))
def test_unrank_undoes_rank(blob):
    packed = np.frombuffer(blob, np.uint8)[None]
    bits = np.unpackbits(packed[0]).astype(bool)
    assert (unrank(rank(packed), np.array([bits.sum()])) == bits).all()


def test_steps_from_the_centre():
    ones = np.array([5, 4, 6, 3, 7])
    assert to_steps(ones, 5).tolist() == [0, 1, 2, 3, 4]
    assert from_steps(to_steps(ones, 5), 5).tolist() == ones.tolist()


@given(layered_masks())
def test_round_trip_and_length(drawn):
    _, layer = drawn
    blocks = cut(layer, int(layer.sum()))
    bits = np.concatenate(encode_blocks(blocks))
    assert bits.size == blocks.bits
    cursor = Cursor(pack([bits]))
    assert (decode_blocks(cursor, layer.size, blocks.centre, blocks.parameter) == layer).all()
    assert cursor.position == bits.size


@pytest.mark.parametrize(("density", "excess"), [(0.1, 0.03), (0.3, 0.02), (0.5, 0.03)])
def test_near_the_entropy_bound(density, excess):
    layer = random_bits("blocks", 64 * 2000, density)
    p = layer.mean()
    bound = -layer.size * (p * np.log2(p) + (1 - p) * np.log2(1 - p))
    assert cut(layer, int(layer.sum())).bits < (1 + excess) * bound


@pytest.mark.parametrize(
    ("bits", "size", "centre", "message"),
    [
        ("1", 64, 65, "cannot hold"),
        ("01", 64, 0, "cannot hold"),
        ("1", 70, 1, "fewer"),
        ("1" + "1" * 11, 64, 2, "beyond the ways"),
        ("1" + "111111", 60, 1, "beyond the end"),
        ("1" + "1" * 3, 64, 32, "ends early"),
    ],
)
def test_impossible_blocks_are_refused(bits, size, centre, message):
    array = np.array([int(bit) for bit in bits], np.uint8)
    with pytest.raises(WireError, match=message):
        decode_blocks(Cursor(pack([array])), size, centre, 0)
