"""Strings of bits, as uint8 arrays of 0 and 1: numbers written side by side without a loop over them.

On the wire the first bit is the top bit of the first byte, and numbers put their top bit first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bits: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]


def pack(parts: Iterable[Bits]) -> bytes:
    """All parts one after the other, filled up with zeros to a whole byte."""
    return np.packbits(np.concatenate([np.zeros(0, np.uint8), *parts])).tobytes()


def fixed_width(values: Integers, width: int) -> Bits:
    """Each value in `width` bits."""
    shifts = np.arange(width - 1, -1, -1)  # [width]
    return ((values[:, None] >> shifts) & 1).astype(np.uint8).reshape(-1)  # [values * width]


def read_fixed_width(bits: Bits, width: int) -> Integers:
    """The inverse of `fixed_width`; `width` is at least 1."""
    columns = bits.reshape(-1, width)  # [values, width]
    values = np.zeros(len(columns), np.int64)
    for column in range(width):
        values = (values << 1) | columns[:, column]
    return values  # [values]


def unary(values: Integers) -> Bits:
    """Each value as that many zeros and a one."""
    bits = np.zeros(int(values.sum()) + values.size, np.uint8)
    bits[np.cumsum(values + 1) - 1] = 1
    return bits


def read_unary(bits: Bits, count: int) -> Integers | None:
    """The first `count` values, or nothing where there are fewer; they end at bit `sum(values) + count`."""
    ends = np.flatnonzero(bits)[:count]  # [count]
    return np.diff(ends, prepend=-1) - 1 if ends.size == count else None
