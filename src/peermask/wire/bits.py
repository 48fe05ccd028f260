"""Bits and bytes, written and read: numbers side by side without a loop over them, and a place in bytes from outside.

Strings of bits are uint8 arrays of 0 and 1. On the wire the first bit is the top bit of the first byte, and numbers put
their top bit first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from peermask.errors import WireError

Bits: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]

MAX_VARINT_BYTES = 5
SPARSE_ENTRIES = 10  # ones of at most one entry in ten


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


def varint(value: int) -> bytes:
    """The bytes that `Cursor.varint` reads."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Cursor:
    """Reads bytes from outside, and single bits until `end_bits`, never past their end: too few is a WireError."""

    def __init__(self, data: bytes) -> None:
        self.data = np.frombuffer(data, np.uint8)
        self.position = 0  # in bits

    def byte(self) -> int:
        return self.take_bytes(1)[0]

    def take_bytes(self, count: int) -> bytes:
        start = self.position // 8
        if count > self.data.size - start:
            raise WireError(f"frame ends early: {count} bytes wanted, {self.data.size - start} left")
        self.position += 8 * count
        return self.data[start : start + count].tobytes()

    def varint(self) -> int:
        """Seven bits per byte, lowest first; the top bit says that more follow."""
        value = 0
        for index in range(MAX_VARINT_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value
        raise WireError(f"a number is longer than {MAX_VARINT_BYTES} bytes")

    def peek_bits(self, count: int) -> Bits:
        """Up to `count` bits, fewer at the end of the data."""
        first, skip = divmod(self.position, 8)
        chunk = np.unpackbits(self.data[first : (self.position + count + 7) // 8])
        return chunk[skip : skip + count]

    def take_bits(self, count: int) -> Bits:
        left = 8 * self.data.size - self.position
        if count > left:
            raise WireError(f"frame ends early: {count} bits wanted, {left} left")
        bits = self.peek_bits(count)
        self.position += count
        return bits

    def end_bits(self) -> None:
        """Move to the next whole byte; bits before it must be zero, so that no two frames mean the same."""
        if self.take_bits(-self.position % 8).any():
            raise WireError("bits after the last layer are not zero")

    @property
    def at_end(self) -> bool:
        return self.position == 8 * self.data.size


def positions(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """`np.flatnonzero(mask)` of a vector, up to three times as fast where few entries are ones.

    Eight entries are one word, and most words are zero. NumPy would search for each one separately.
    """
    whole = len(mask) // 8 * 8
    if SPARSE_ENTRIES * np.count_nonzero(mask) > len(mask) or not mask.flags.c_contiguous:
        return np.flatnonzero(mask)
    words = mask[:whole].view(np.uint64)
    filled = np.flatnonzero(words != 0)
    inside = np.flatnonzero(words[filled].view(np.bool_))
    found: NDArray[np.int64] = filled[inside >> 3]  # in place from here: one array less to fill
    found <<= 3
    inside &= 7
    found += inside
    return found if whole == len(mask) else np.concatenate([found, whole + np.flatnonzero(mask[whole:])])
