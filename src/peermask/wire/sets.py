"""A set of positions in a vector of layers: the one code that masks, flips and supports of values share.

A layer without members, or with nothing but members, is its entry in the table before the bits and nothing more. Any
other is written as the gaps between its rarer symbol, or as plain bits where gaps are no shorter. Planning finds the
exact lengths without writing, so the cost of a frame is the plan of the encoder itself.

Strings of bits are uint8 arrays of 0 and 1. On the wire the first bit is the top bit of the first byte, and numbers put
their top bit first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
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


Mask: TypeAlias = NDArray[np.bool_]


class Code(IntEnum):
    """First byte of a layer's entry."""

    EMPTY = 0
    FULL = 1
    ONES = 2  # gaps between the members, their number in the entry
    ZEROS = 3  # gaps between all others, their number in the entry
    BITS = 4  # one bit per weight


@dataclass(frozen=True)
class LayerPlan:
    """Plan of how one layer will be written: its table entry, how many bits, and what they are made from."""

    entry: bytes
    bits: int = 0
    positions: Integers | None = None  # for gaps
    members: Mask | None = None  # for plain bits


@dataclass(frozen=True)
class SetPlan:
    """Plan of how all layers will be written."""

    layers: tuple[LayerPlan, ...]

    @property
    def size(self) -> int:
        """Bytes of `encode_set`."""
        return sum(len(layer.entry) for layer in self.layers) + (sum(layer.bits for layer in self.layers) + 7) // 8


def slices(layers: Sequence[int]) -> Iterator[slice]:
    start = 0
    for size in layers:
        yield slice(start, start + size)
        start += size


def plan_set(members: Mask, layers: Sequence[int]) -> SetPlan:
    return SetPlan(tuple(plan_layer(members[part]) for part in slices(layers)))


def plan_set_within(members: Mask, layers: Sequence[int], limit: int) -> SetPlan | None:
    """Call `plan_set`, or return None if it takes more than `limit` bytes, which mostly shows without planning it."""
    if sum(least_bits(members[part]) for part in slices(layers)) > 8 * limit:
        return None
    plan = plan_set(members, layers)
    return plan if plan.size <= limit else None


def least_bits(layer: Mask) -> int:
    """No plan of the layer has fewer, its entry aside: gaps of nothing but zeros."""
    ones = int(np.count_nonzero(layer))
    count = min(ones, layer.size - ones)
    return min(layer.size, count * (1 + rice_parameter(count, layer.size))) if count else 0


def plan_layer(layer: Mask) -> LayerPlan:
    """Gaps where they are shorter than one bit per weight, table entry included."""
    ones = int(np.count_nonzero(layer))
    zeros_are_rarer = 2 * ones > layer.size
    count = min(ones, layer.size - ones)
    if count == 0:
        return LayerPlan(bytes([Code.FULL if ones else Code.EMPTY]))
    positions = np.flatnonzero(~layer if zeros_are_rarer else layer)
    entry = bytes([Code.ZEROS if zeros_are_rarer else Code.ONES]) + varint(count)
    gaps = LayerPlan(entry, gap_bits(positions, layer.size), positions=positions)
    plain = LayerPlan(bytes([Code.BITS]), layer.size, members=layer)
    return gaps if 8 * len(gaps.entry) + gaps.bits < 8 * len(plain.entry) + plain.bits else plain


def plan_positions(positions: Integers, size: int) -> LayerPlan:
    """Plan a layer as `plan_layer` does, from the positions of the members, which rise."""
    if not positions.size:
        return LayerPlan(bytes([Code.EMPTY]))
    entry = bytes([Code.ONES]) + varint(positions.size)
    gaps = LayerPlan(entry, gap_bits(positions, size), positions=positions)
    if 2 * positions.size <= size and 8 * len(entry) + gaps.bits < 8 + size:
        return gaps
    layer = np.zeros(size, np.bool_)
    layer[positions] = True
    return plan_layer(layer)


def encode_set(plan: SetPlan, layers: Sequence[int]) -> bytes:
    """The table of all layers, then the bits of all layers, filled up to a whole byte once."""
    parts: list[Bits] = []
    for layer, size in zip(plan.layers, layers, strict=True):
        if layer.positions is not None:
            parts += encode_gaps(layer.positions, size)
        elif layer.members is not None:
            parts.append(layer.members.astype(np.uint8))
    return b"".join(layer.entry for layer in plan.layers) + pack(parts)


def read_entry(cursor: Cursor, size: int) -> tuple[Code, int]:
    """One layer's entry of the table: the code and, for gaps, how many."""
    byte = cursor.byte()
    if byte not in list(Code):
        raise WireError(f"layer entry {byte:#04x} is not one of 0 to {max(Code)}")
    if byte not in (Code.ONES, Code.ZEROS):
        return Code(byte), 0
    count = cursor.varint()
    if not 1 <= count <= size:
        raise WireError(f"{count} positions in a layer of {size}")
    return Code(byte), count


def decode_layer(cursor: Cursor, code: Code, count: int, size: int) -> Integers:
    """The positions of a layer's members, which rise."""
    if code is Code.BITS:
        return np.flatnonzero(cursor.take_bits(size))
    positions = decode_gaps(cursor, count, size) if count else np.zeros(0, np.int64)
    if code in (Code.EMPTY, Code.ONES):
        return positions
    others = np.ones(size, np.bool_)
    others[positions] = False
    return np.flatnonzero(others)


def decode_set(cursor: Cursor, layers: Sequence[int]) -> Mask:
    """The inverse of `encode_set`, [P]; no buffer is larger than a few times the layer it is for."""
    entries = [read_entry(cursor, size) for size in layers]
    members = np.zeros(sum(layers), np.bool_)
    for (code, count), size, part in zip(entries, layers, slices(layers), strict=True):
        members[part][decode_layer(cursor, code, count, size)] = True
    cursor.end_bits()
    return members


# Positions in a layer as the gaps between them, in Rice's code: gap_i = position_i - position_(i-1) - 1 with
# position_(-1) = -1. Written are the low `k` bits of all gaps, and then gap >> k of all gaps in unary. Kept apart,
# numpy reads and writes both without a loop over gaps.


def rice_parameter(count: int, size: int) -> int:
    """k, the best for `count` positions spread evenly over `size`; not sent, as both ends can work it out.

    For geometric gaps of success rate p the best k is 1 + floor(log2(log(phi - 1) / log(1 - p))), phi the
    golden ratio (Kiely 2004). With 1 / -log(1 - p) = size / count - 1/2 that is the largest k with
    2**k <= 0.9625 (2 size - count) / (2 count): only integers. At its worst density, 0.38, the code of such
    positions is 4.2 % longer than their entropy, from 0.02 down at most 1.6 %.
    """
    return max(0, (77 * (2 * size - count) // (160 * count)).bit_length() - 1)


def gaps_of(positions: Integers) -> Integers:
    gaps = positions.copy()  # [count]
    gaps[1:] -= positions[:-1] + 1  # several times faster than np.diff on the few of a class
    return gaps


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
