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

WORD = 64


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


def variable_width(values: Integers, widths: Integers) -> Bits:
    """Each value in its own number of bits, at most 63."""
    ends = np.cumsum(widths)
    total = int(ends[-1]) if ends.size else 0
    starts = ends - widths
    number, width = values.astype(np.uint64), widths.astype(np.int64)
    word, spill = starts // WORD, starts % WORD + width - WORD  # spill: bits that reach into the next word
    # A shift by 64 is undefined, hence the clips; a width of 0 writes nothing as its value is 0.
    left = np.clip(-spill, 0, WORD - 1).astype(np.uint64)
    right = np.clip(spill, 0, WORD - 1).astype(np.uint64)
    head = np.where(spill > 0, number >> right, number << left)
    words = np.zeros(total // WORD + 2, np.uint64)
    if values.size:
        first = np.flatnonzero(np.diff(word, prepend=-1))  # the first value of each word
        words[word[first]] = np.bitwise_or.reduceat(head, first)
    crossing = spill > 0
    # At most one value crosses into any word.
    words[word[crossing] + 1] |= number[crossing] << (WORD - spill[crossing]).astype(np.uint64)
    return np.unpackbits(words.astype(">u8").view(np.uint8))[:total]  # [total]


def read_variable_width(bits: Bits, widths: Integers) -> Integers:
    """The inverse of `variable_width`."""
    starts = np.cumsum(widths) - widths
    packed = np.packbits(bits)
    words = np.zeros(bits.size // WORD + 2, ">u8")
    words.view(np.uint8)[: packed.size] = packed
    native = words.astype(np.uint64)
    word, offset = starts // WORD, (starts % WORD).astype(np.uint64)
    # Two shifts for the second half: a single one by 64 - 0 is undefined.
    joined = (native[word] << offset) | ((native[word + 1] >> np.uint64(1)) >> (np.uint64(WORD - 1) - offset))
    shift = np.clip(WORD - widths, 0, WORD - 1).astype(np.uint64)
    return np.where(widths > 0, joined >> shift, np.uint64(0)).astype(np.int64)  # [values]
