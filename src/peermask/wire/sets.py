"""A set of positions in a vector of layers: the one code that masks, flips and supports of values share.

Every layer is written in the shortest of four ways; its entry in the table before the bits says which.
    empty   no position, or with the complement flag all of them
    gaps    the gaps between positions (or, complemented, between the positions left out)
    blocks  enumerated blocks of 64
    raw     one bit per weight
Planning finds the exact lengths without writing, so the cost of a frame is the plan of the encoder itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from peermask.errors import WireError
from peermask.wire.bits import Bits, Integers, pack
from peermask.wire.blocks import BLOCK, STEP_PARAMETERS, Blocks, cut, decode_blocks, encode_blocks
from peermask.wire.cursor import Cursor, varint
from peermask.wire.gaps import decode_gaps, encode_gaps, gap_bits

Mask: TypeAlias = NDArray[np.bool_]

# Which codes are tried is a function of the count alone, so that planning is cheap. Blocks lose where less than a
# sixty-fourth is set. Above an eighth neither wins everywhere (gaps 0.7 to 3.0 % over the bound, blocks 1.0 to 2.3 %),
# and blocks have the smaller worst case.
GAPS_UP_TO = 8
BLOCKS_FROM = 64


class Mode(IntEnum):
    EMPTY = 0
    GAPS = 1
    BLOCKS = 2
    RAW = 3


COMPLEMENT = 1 << 2
PARAMETER_SHIFT = 3


@dataclass(frozen=True)
class LayerPlan:
    """How one layer will be written: its table entry and what the bits are made from."""

    entry: bytes
    bits: int
    source: Integers | Blocks | Mask | None  # positions, blocks, the layer itself, or nothing


@dataclass(frozen=True)
class SetPlan:
    """How all layers will be written."""

    layers: tuple[LayerPlan, ...]

    @property
    def table_bytes(self) -> int:
        return sum(len(layer.entry) for layer in self.layers)

    @property
    def size(self) -> int:
        """Bytes of `encode_set`."""
        return self.table_bytes + (sum(layer.bits for layer in self.layers) + 7) // 8


def slices(layers: Sequence[int]) -> Iterator[slice]:
    start = 0
    for size in layers:
        yield slice(start, start + size)
        start += size


def tries_gaps(minority: int, size: int) -> bool:
    return minority * GAPS_UP_TO <= size


def tries_blocks(minority: int, size: int) -> bool:
    return minority * BLOCKS_FROM > size


def plan_set(members: Mask, layers: Sequence[int]) -> SetPlan:
    return SetPlan(tuple(plan_layer(members[part]) for part in slices(layers)))


def plan_set_within(members: Mask, layers: Sequence[int], limit: int) -> SetPlan | None:
    """As `plan_set`, or nothing where it takes more than `limit` bytes; stops as soon as that is clear."""
    plans: list[LayerPlan] = []
    for part in slices(layers):
        plans.append(plan_layer(members[part]))
        if SetPlan(tuple(plans)).size > limit:
            return None
    return SetPlan(tuple(plans))


def plan_layer(layer: Mask) -> LayerPlan:
    """The shortest of the codes that are tried, table entry included; on a tie the first."""
    ones = int(np.count_nonzero(layer))
    flag = COMPLEMENT if 2 * ones > layer.size else 0
    minority = min(ones, layer.size - ones)
    if minority == 0:
        return LayerPlan(bytes([Mode.EMPTY | flag]), 0, None)
    plans = []
    if tries_gaps(minority, layer.size):
        positions = np.flatnonzero(~layer if flag else layer)
        entry = bytes([Mode.GAPS | flag]) + varint(minority)
        plans.append(LayerPlan(entry, gap_bits(positions, layer.size), positions))
    if tries_blocks(minority, layer.size):
        blocks = cut(layer, ones)
        entry = bytes([Mode.BLOCKS | blocks.parameter << PARAMETER_SHIFT, blocks.centre])
        plans.append(LayerPlan(entry, blocks.bits, blocks))
    plans.append(LayerPlan(bytes([Mode.RAW]), layer.size, layer))
    return min(plans, key=lambda plan: 8 * len(plan.entry) + plan.bits)


def encode_set(plan: SetPlan, layers: Sequence[int]) -> bytes:
    """The table of all layers, then the bits of all layers, filled up to a whole byte once."""
    parts: list[Bits] = []
    for layer, size in zip(plan.layers, layers, strict=True):
        if isinstance(layer.source, Blocks):
            parts += encode_blocks(layer.source)
        elif layer.source is not None and layer.source.dtype == np.bool_:
            parts.append(layer.source.astype(np.uint8))
        elif layer.source is not None:
            parts += encode_gaps(layer.source.astype(np.int64, copy=False), size)
    return b"".join(layer.entry for layer in plan.layers) + pack(parts)


@dataclass(frozen=True)
class Entry:
    """One layer's entry of the table, as read."""

    mode: Mode
    complement: bool
    parameter: int  # blocks: of the step code
    number: int  # gaps: how many; blocks: the centre


def read_entry(cursor: Cursor, size: int) -> Entry:
    byte = cursor.byte()
    mode, complement, parameter = Mode(byte & 3), bool(byte & COMPLEMENT), byte >> PARAMETER_SHIFT
    if mode is Mode.BLOCKS:
        centre = cursor.byte()
        if complement or parameter not in STEP_PARAMETERS or centre > BLOCK:
            raise WireError(f"layer entry {byte:#04x} with centre {centre} is not valid")
        return Entry(mode, False, parameter, centre)
    if parameter or (complement and mode is Mode.RAW):
        raise WireError(f"layer entry {byte:#04x} is not valid")
    count = cursor.varint() if mode is Mode.GAPS else 0
    if mode is Mode.GAPS and not 1 <= count <= size:
        raise WireError(f"{count} positions announced in a layer of {size}")
    return Entry(mode, complement, 0, count)


def decode_set(cursor: Cursor, layers: Sequence[int]) -> Mask:
    """The inverse of `encode_set`, [P]; no buffer is larger than a few times the layer it is for."""
    entries = [read_entry(cursor, size) for size in layers]
    members = np.zeros(sum(layers), np.bool_)
    for entry, size, part in zip(entries, layers, slices(layers), strict=True):
        layer = members[part]  # a view
        if entry.mode is Mode.GAPS:
            layer[decode_gaps(cursor, entry.number, size)] = True
        elif entry.mode is Mode.BLOCKS:
            layer[:] = decode_blocks(cursor, size, entry.number, entry.parameter)
        elif entry.mode is Mode.RAW:
            layer[:] = cursor.take_bits(size)
        if entry.complement:
            np.logical_not(layer, out=layer)
    cursor.end_bits()
    return members
