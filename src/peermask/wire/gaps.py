"""Positions in a layer as the gaps between them, in Rice's code.

gap_i = position_i - position_(i-1) - 1 with position_(-1) = -1. Written are the low `k` bits of all gaps, and
then gap >> k of all gaps in unary. Kept apart, numpy reads and writes both without a loop over gaps.
"""

from __future__ import annotations

import numpy as np

from peermask.errors import WireError
from peermask.wire.bits import Bits, Integers, fixed_width, read_fixed_width, read_unary, unary
from peermask.wire.cursor import Cursor


def rice_parameter(count: int, size: int) -> int:
    """k, the best for `count` positions spread evenly over `size`; not sent, as both ends can work it out.

    For geometric gaps of success rate p the best k is 1 + floor(log2(log(phi - 1) / log(1 - p))), phi the
    golden ratio (Kiely 2004). With 1 / -log(1 - p) = size / count - 1/2 that is the largest k with
    2**k <= 0.9625 (2 size - count) / (2 count): only integers. At its worst density, 0.38, the code of such
    positions is 4.2 % longer than their entropy, from 0.02 down at most 1.6 %.
    """
    return max(0, (77 * (2 * size - count) // (160 * count)).bit_length() - 1)


def gaps_of(positions: Integers) -> Integers:
    return np.diff(positions, prepend=-1) - 1  # [count]


def gap_bits(positions: Integers, size: int) -> int:
    """Exact length of `encode_gaps`."""
    k = rice_parameter(positions.size, size)
    return int((gaps_of(positions) >> k).sum()) + positions.size * (1 + k)


def encode_gaps(positions: Integers, size: int) -> list[Bits]:
    """`positions` rise, are at least one, and lie below `size`."""
    k = rice_parameter(positions.size, size)
    gaps = gaps_of(positions)
    return [fixed_width(gaps & ((1 << k) - 1), k), unary(gaps >> k)]


def decode_gaps(cursor: Cursor, count: int, size: int) -> Integers:
    """The inverse of `encode_gaps` for a `count` of 1 to `size`."""
    k = rice_parameter(count, size)
    low = read_fixed_width(cursor.take_bits(count * k), k) if k else np.zeros(count, np.int64)
    # Valid gaps add up to less than `size`, so the unary part is never longer than this.
    high = read_unary(cursor.peek_bits(count + (size >> k)), count)
    if high is None:
        raise WireError(f"{count} positions expected in a layer of {size}, fewer found")
    cursor.position += int(high.sum()) + count
    positions = np.cumsum(((high << k) | low) + 1) - 1  # [count]
    if positions[-1] >= size:
        raise WireError(f"position {positions[-1]} lies outside a layer of {size}")
    return positions
