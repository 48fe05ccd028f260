"""Many positions in a layer: blocks of 64 weights, each as how many are set and which of the ways that is.

Cover's enumerative code (1973). A block with c ones at positions p_1 < ... < p_c is the number
sum_i C(p_i, i), one of C(64, c), written in ceil(log2 C(64, c)) bits. The c themselves are written as steps
from a `centre` (0, -1, +1, -2, ... numbered 0, 1, 2, 3, ...) in Rice's code. Near the entropy bound at any
density and exact in integers; its length is a sum over blocks of a function of c; no loop runs over blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from peermask.errors import WireError
from peermask.wire.bits import (
    Bits,
    Integers,
    fixed_width,
    read_fixed_width,
    read_unary,
    read_variable_width,
    unary,
    variable_width,
)
from peermask.wire.cursor import Cursor

BLOCK = 64
BLOCK_BYTES = BLOCK // 8
STEP_PARAMETERS = range(6)  # steps are at most 128, so nothing above 5 pays
RANK_WIDTHS = np.array([(comb(BLOCK, ones) - 1).bit_length() for ones in range(BLOCK + 1)])  # [65]
ONES_IN_BYTE = np.array([value.bit_count() for value in range(256)], np.uint8)  # [256]


@dataclass(frozen=True)
class Blocks:
    """A layer cut into blocks, with the parameters of the code for how many ones each holds."""

    packed: NDArray[np.uint8]  # [blocks, 8]
    ones: Integers  # [blocks]
    centre: int
    parameter: int
    bits: int  # exact length of `encode_blocks`


def cut(layer: NDArray[np.bool_], ones_in_layer: int) -> Blocks:
    """Blocks of `layer`, the last filled up with zeros; centre: the mean; parameter: the best of six."""
    count = -(-layer.size // BLOCK)
    packed = np.zeros((count, BLOCK_BYTES), np.uint8)
    bytes_of_layer = np.packbits(layer)
    packed.reshape(-1)[: bytes_of_layer.size] = bytes_of_layer
    ones = ONES_IN_BYTE[packed].sum(1, dtype=np.int64)  # [blocks]
    centre = centre_of(ones_in_layer, layer.size)
    tally = np.bincount(ones, minlength=BLOCK + 1)  # [65] lengths depend on it alone
    steps = to_steps(np.arange(BLOCK + 1), centre)
    lengths = [int(tally @ (steps >> s)) + count * (1 + s) for s in STEP_PARAMETERS]
    parameter = int(np.argmin(lengths))
    return Blocks(packed, ones, centre, parameter, lengths[parameter] + int(tally @ RANK_WIDTHS))


def centre_of(ones_in_layer: int, size: int) -> int:
    """The mean number of ones in a block, rounded."""
    return (2 * BLOCK * ones_in_layer + size) // (2 * size)


def to_steps(ones: Integers, centre: int) -> Integers:
    """0, -1, +1, -2, ... from the centre become 0, 1, 2, 3, ..."""
    away = ones - centre
    return np.where(away < 0, -2 * away - 1, 2 * away)


def from_steps(steps: Integers, centre: int) -> Integers:
    return np.where(steps & 1, -((steps + 1) >> 1), steps >> 1) + centre


def encode_blocks(blocks: Blocks) -> list[Bits]:
    """Low bits of all steps, their high parts in unary, then the ranks."""
    steps, s = to_steps(blocks.ones, blocks.centre), blocks.parameter
    return [
        fixed_width(steps & ((1 << s) - 1), s),
        unary(steps >> s),
        variable_width(rank(blocks.packed), RANK_WIDTHS[blocks.ones]),
    ]


def decode_blocks(cursor: Cursor, size: int, centre: int, parameter: int) -> NDArray[np.bool_]:
    """The layer, [size]."""
    count, s = -(-size // BLOCK), parameter
    low = read_fixed_width(cursor.take_bits(count * s), s) if s else np.zeros(count, np.int64)
    high = read_unary(cursor.peek_bits(count * (1 + (2 * BLOCK >> s))), count)
    if high is None:
        raise WireError(f"a layer of {size} needs {count} blocks, the frame has fewer")
    cursor.position += int(high.sum()) + count
    ones = from_steps((high << s) | low, centre)
    if ones.min() < 0 or ones.max() > BLOCK:
        raise WireError(f"a block of {BLOCK} weights cannot hold {ones.min()} or {ones.max()} ones")
    widths = RANK_WIDTHS[ones]
    ranks = read_variable_width(cursor.take_bits(int(widths.sum())), widths)
    if (ranks >= binomials()[BLOCK, ones]).any():
        raise WireError("a block's rank is beyond the ways its ones can lie")
    layer = unrank(ranks, ones)
    if layer[size:].any():
        raise WireError(f"weights are set beyond the end of a layer of {size}")
    return layer[:size]


@cache
def binomials() -> Integers:
    """C(n, k) for n up to 64; zero where k > n. C(64, 32) is below 2**61."""
    table = np.zeros((BLOCK + 1, BLOCK + 9), np.int64)
    for n in range(BLOCK + 1):
        table[n, : n + 1] = [comb(n, k) for k in range(n + 1)]
    return table  # [65, 73]


@cache
def byte_ranks() -> Integers:
    """What byte b of a block adds to its rank, by the ones before it and its value."""
    value = np.arange(256)
    table = np.zeros((BLOCK_BYTES, BLOCK + 1, 256), np.int64)
    for b in range(BLOCK_BYTES):
        index = np.repeat(np.arange(BLOCK + 1)[:, None], 256, axis=1)  # [65, 256] ones up to here
        for place in range(8):
            bit = (value >> (7 - place)) & 1  # [256]
            index = index + bit
            table[b] += bit * binomials()[8 * b + place][index]
    return table  # [8, 65, 256]


def rank(packed: NDArray[np.uint8]) -> Integers:
    """sum_i C(p_i, i) of every block, a byte at a time."""
    before = np.zeros(len(packed), np.int64)
    total = np.zeros(len(packed), np.int64)
    for b in range(BLOCK_BYTES):
        total += byte_ranks()[b][before, packed[:, b]]
        before += ONES_IN_BYTE[packed[:, b]]
    return total  # [blocks]


def unrank(ranks: Integers, ones: Integers) -> NDArray[np.bool_]:
    """From the last position down: set where the rank still holds C(position, ones left)."""
    rest, left = ranks.copy(), ones.copy()
    layer = np.empty((BLOCK, ranks.size), np.bool_)
    for position in range(BLOCK - 1, -1, -1):
        ways = binomials()[position].take(left)
        hit = np.greater_equal(rest, ways, out=layer[position])
        rest -= ways * hit
        left -= hit
    return layer.T.reshape(-1)  # [blocks * 64]
