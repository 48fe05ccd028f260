"""A frame: one payload of one agent and round as bytes, with a header before it and a checksum after it; and what it
costs, which is the encoder's own plan, added up.

The checksum is CRC-32. It finds every burst of up to 32 bits and is there against accidents; against people
there is the transport's authentication, and a longer digest without a key would add bytes and no protection.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from peermask.errors import WireError
from peermask.wire.history import History, decode_flips, flips_between, plan_flips
from peermask.wire.schema import Array, Leaf, MessageRow, Schema
from peermask.wire.sets import Cursor, Mask, SetPlan, decode_set, encode_set, plan_set, plan_set_within

Floats: TypeAlias = NDArray[np.float32] | NDArray[np.float16]


class Kind(IntEnum):
    """First byte of a leaf, before what the kind needs; the sender takes the smallest, on a tie the lowest number.

    0 keyframe      the mask as a set
    1 delta         the flips against the mask sent last as a set, cut into classes by how likely they were
    2 dense         values x P, little-endian: float32, or float16 where the schema says so
    3 sparse        the support as a set, then values at its positions
    4 sparse delta  the flips of the support against the one sent last, then values at its positions
    5 on a mask     the index of a mask leaf of this frame, then values at that mask's positions
    """

    KEYFRAME = 0
    DELTA = 1
    DENSE = 2
    SPARSE = 3
    SPARSE_DELTA = 4
    ON_MASK = 5


NEEDS_HISTORY = (Kind.DELTA, Kind.SPARSE_DELTA)


@dataclass(frozen=True)
class LeafPlan:
    """Plan of how one leaf will be written."""

    kind: Kind
    sizes: tuple[int, ...]  # of the layers or classes that `members` is cut into
    members: SetPlan | None = None
    mask_index: int | None = None
    where: Mask | None = None  # [P] positions whose values are sent
    values: Floats | None = None  # [P]
    values_bytes: int = 0

    @property
    def size(self) -> int:
        positions = self.members.size if self.members else 0
        return 1 + positions + (self.mask_index is not None) + self.values_bytes

    def encode(self) -> bytes:
        parts = [bytes([self.kind])]
        if self.members is not None:
            parts.append(encode_set(self.members, self.sizes))
        if self.mask_index is not None:
            parts.append(bytes([self.mask_index]))
        if self.values is not None:
            sent = self.values if self.where is None else self.values[self.where]
            parts.append(sent.astype(sent.dtype.newbyteorder("<"), copy=False).tobytes())
        return b"".join(parts)


def plan_mask(leaf: Leaf, mask: Mask, history: History | None) -> LeafPlan:
    """The mask as a set, or its flips cut into classes, whichever is smaller; on a tie the set."""
    if history is None:
        return LeafPlan(Kind.KEYFRAME, leaf.layers, plan_set(mask, leaf.layers))
    contexts = history.contexts[leaf.name]
    flips = plan_flips(contexts, flips_between(history.payload[leaf.name], mask))
    whole = plan_set_within(mask, leaf.layers, flips.size)
    if whole is not None:
        return LeafPlan(Kind.KEYFRAME, leaf.layers, whole)
    return LeafPlan(Kind.DELTA, tuple(int(contexts.sizes[c]) for c in contexts.used), flips)


def plan_support(leaf: Leaf, where: Mask, history: History | None) -> LeafPlan:
    """The same for positions of values, whose flips are coded by layer; the values are still missing."""
    if history is None:
        return LeafPlan(Kind.SPARSE, leaf.layers, plan_set(where, leaf.layers))
    flips = plan_set(where ^ support(history.payload[leaf.name]), leaf.layers)
    whole = plan_set_within(where, leaf.layers, flips.size)
    return LeafPlan(Kind.SPARSE_DELTA if whole is None else Kind.SPARSE, leaf.layers, flips if whole is None else whole)


def support(values: Floats) -> Mask:
    """Mark values other than +0.0; -0.0 counts, or its sign would be lost."""
    where: Mask = values.view(f"u{values.itemsize}") != 0
    return where  # [P]


def check_finite(values: Floats, leaf: Leaf) -> None:
    if not np.isfinite(values).all():
        limit = ", or beyond 65,504, where float16 ends" if leaf.is_half else ""
        raise WireError(f"leaf {leaf.name!r} holds a value that is NaN or infinite{limit}")


def plan_leaf(leaf: Leaf, array: Array, history: History | None, masks: Mapping[int, Mask]) -> LeafPlan:
    """The smallest way to write `array`; `masks` are the mask leaves of the same frame by index."""
    if leaf.is_mask:
        return plan_mask(leaf, array, history)
    check_finite(array, leaf)
    where = support(array)  # [P]
    sent = leaf.value_bytes * int(np.count_nonzero(where))
    dense = LeafPlan(Kind.DENSE, leaf.layers, values=array, values_bytes=leaf.value_bytes * array.size)
    if sent == dense.values_bytes:
        return dense  # without a zero nothing is shorter
    sparse = plan_support(leaf, where, history)
    plans = [dense, replace(sparse, where=where, values=array, values_bytes=sent)]
    for index, mask in masks.items():
        if mask.size == array.size and not (where & ~mask).any():
            on_mask = LeafPlan(Kind.ON_MASK, leaf.layers, mask_index=index, where=mask, values=array)
            plans.append(replace(on_mask, values_bytes=leaf.value_bytes * int(np.count_nonzero(mask))))
    return min(plans, key=lambda plan: plan.size)


def decode_leaf(cursor: Cursor, leaf: Leaf, history: History | None, masks: Mapping[int, Mask]) -> Array:
    """The leaf, [P]."""
    number = cursor.byte()
    if number not in list(Kind) or (number <= Kind.DELTA) != leaf.is_mask:
        raise WireError(f"leaf {leaf.name!r} has kind {number}, which it cannot have")
    kind = Kind(number)
    if kind in NEEDS_HISTORY and history is None:
        raise WireError(f"leaf {leaf.name!r} is a delta in a frame that names no history")
    if kind is Kind.ON_MASK:
        index = cursor.byte()
        if index not in masks or masks[index].size != leaf.size:
            raise WireError(f"leaf {leaf.name!r} refers to mask leaf {index}, which is missing or of another size")
        return decode_values(cursor, leaf, masks[index])
    if kind is Kind.DENSE:
        return decode_values(cursor, leaf, None)
    if kind is Kind.DELTA and history is not None:
        mask: Mask = history.payload[leaf.name].copy()
        mask[decode_flips(cursor, history.contexts[leaf.name])] ^= True
        return mask
    members = decode_set(cursor, leaf.layers)  # [P]
    if kind is Kind.SPARSE_DELTA and history is not None:
        members ^= support(history.payload[leaf.name])
    return members if leaf.is_mask else decode_values(cursor, leaf, members)


def decode_values(cursor: Cursor, leaf: Leaf, where: Mask | None) -> Floats:
    count = leaf.size if where is None else int(np.count_nonzero(where))
    sent = np.frombuffer(cursor.take_bytes(leaf.value_bytes * count), f"<f{leaf.value_bytes}")  # [count]
    check_finite(sent, leaf)
    values: Floats = np.zeros(leaf.size, leaf.dtype)
    values[slice(None) if where is None else where] = sent
    return values  # [P]


MAGIC = b"PM"
VERSION = 2
NO_HISTORY = 2**32 - 1
RUN_ID_BYTES = 8
# magic, version, leaves, run id, sender, round, history, schema fingerprint, bytes of the body
HEADER = struct.Struct("<2sBB8sIIIII")
CHECKSUM = struct.Struct("<I")
FRAME_BYTES = HEADER.size + CHECKSUM.size
MAX_FRAME_BYTES = 2**31


@dataclass(frozen=True)
class FrameHeader:
    """Run, sender, round, and the history of the sender that the frame builds on (or none)."""

    run_id: bytes
    sender: int
    round: int
    history: int | None = None

    def __post_init__(self) -> None:
        if len(self.run_id) != RUN_ID_BYTES:
            raise WireError(f"run id has {len(self.run_id)} bytes, expected {RUN_ID_BYTES}")
        for name in ("sender", "round", "history"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < NO_HISTORY:
                raise WireError(f"{name} is {value}, allowed: 0 to {NO_HISTORY - 1}")


@dataclass(frozen=True)
class Expectation:
    """Expectation of a receiver; a sender of None means any."""

    run_id: bytes
    schema: Schema
    sender: int | None = None


def plan_frame(payload: MessageRow, schema: Schema, history: History | None) -> list[LeafPlan]:
    """Plan how each leaf will be written, for the encoder and `frame_size`."""
    schema.check(payload)
    if history is not None:
        schema.check(history.payload)
    masks = {i: payload[leaf.name] for i, leaf in enumerate(schema.leaves) if leaf.is_mask}
    return [plan_leaf(leaf, payload[leaf.name], history, masks) for leaf in schema.leaves]


def builds_on(history: History | None, plans: list[LeafPlan], schema: Schema) -> bool:
    """Whether a frame is a delta: with masks it continues a history even if a mask is sent whole; without, only
    if a leaf needs it."""
    return history is not None and (
        any(leaf.is_mask for leaf in schema.leaves) or any(plan.kind in NEEDS_HISTORY for plan in plans)
    )


def encode_frame(header: FrameHeader, payload: MessageRow, schema: Schema, history: History | None = None) -> bytes:
    """The smallest frame that builds on `history`, or on nothing."""
    if (None if history is None else history.name) != header.history:
        raise WireError(f"header names history {header.history}, given is {None if history is None else history.name}")
    if not schema.leaves:
        raise WireError("payload has no leaves: there is nothing to send")
    plans = plan_frame(payload, schema, history)
    if not builds_on(history, plans, schema):
        header = replace(header, history=None)
    body = b"".join(plan.encode() for plan in plans)
    head = HEADER.pack(
        MAGIC,
        VERSION,
        len(schema.leaves),
        header.run_id,
        header.sender,
        header.round,
        NO_HISTORY if header.history is None else header.history,
        schema.fingerprint,
        len(body),
    )
    return head + body + CHECKSUM.pack(zlib.crc32(body, zlib.crc32(head)))


def frame_size(payload: MessageRow, schema: Schema, history: History | None = None) -> tuple[int, bool]:
    """Bytes of `encode_frame`, and whether the frame is a delta; a payload without leaves is not sent."""
    if not schema.leaves:
        return 0, False
    plans = plan_frame(payload, schema, history)
    return FRAME_BYTES + sum(plan.size for plan in plans), builds_on(history, plans, schema)


def bitmap_size(schema: Schema) -> int:
    """The plain alternative: the same header and checksum, one bit per mask weight, and every value."""
    body = sum((leaf.size + 7) // 8 if leaf.is_mask else leaf.value_bytes * leaf.size for leaf in schema.leaves)
    return FRAME_BYTES + body if schema.leaves else 0


def name_after(frame: bytes) -> int:
    """The name of the history that ends with `frame`: its checksum, or one less where that would mean none."""
    return min(int(CHECKSUM.unpack_from(frame, len(frame) - CHECKSUM.size)[0]), NO_HISTORY - 1)


def is_keyframe(frame: bytes) -> bool:
    """Whether an encoded frame builds on nothing."""
    return bool(HEADER.unpack_from(frame)[6] == NO_HISTORY)


def read_header(data: bytes, expected: Expectation) -> FrameHeader:
    """The header of a frame that is whole, undamaged and meant for this receiver."""
    if not FRAME_BYTES <= len(data) <= MAX_FRAME_BYTES:
        raise WireError(f"frame has {len(data)} bytes, allowed: {FRAME_BYTES} to {MAX_FRAME_BYTES}")
    magic, version, leaves, run_id, sender, round_, history, fingerprint, body = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise WireError(f"frame starts with {magic.hex()}, expected {MAGIC.hex()}: not a peermask frame")
    if version != VERSION:
        raise WireError(f"frame has version {version}, this end has {VERSION}; update the older of the two")
    if len(data) != FRAME_BYTES + body:
        raise WireError(f"frame has {len(data)} bytes, its header says {FRAME_BYTES + body}")
    if CHECKSUM.unpack_from(data, HEADER.size + body)[0] != zlib.crc32(memoryview(data)[: HEADER.size + body]):
        raise WireError("frame is damaged: its checksum does not match")
    if run_id != expected.run_id:
        raise WireError(f"frame belongs to run {run_id.hex()}, expected {expected.run_id.hex()}")
    if expected.sender is not None and sender != expected.sender:
        raise WireError(f"frame is from agent {sender}, expected {expected.sender}")
    if fingerprint != expected.schema.fingerprint or leaves != len(expected.schema.leaves):
        raise WireError(
            f"frame has {leaves} leaves of schema {fingerprint:08x}, expected "
            f"{len(expected.schema.leaves)} of {expected.schema.fingerprint:08x}: another model or algorithm"
        )
    return FrameHeader(run_id, sender, round_, None if history == NO_HISTORY else history)


def decode_frame(
    data: bytes, expected: Expectation, history: History | None = None
) -> tuple[FrameHeader, Mapping[str, Array]]:
    """Return header and payload, or raise WireError; `history` is the sender's."""
    header = read_header(data, expected)
    if header.history is None:
        history = None
    elif history is None or history.name != header.history:
        present = "none is held" if history is None else f"{history.name:08x} is held"
        raise WireError(f"frame builds on history {header.history:08x} of agent {header.sender}, {present}", "base")
    cursor = Cursor(data[HEADER.size : -CHECKSUM.size])
    payload: dict[str, Array] = {}
    masks: dict[int, Array] = {}
    for index, leaf in enumerate(expected.schema.leaves):
        payload[leaf.name] = decode_leaf(cursor, leaf, history, masks)
        if leaf.is_mask:
            masks[index] = payload[leaf.name]
    if not cursor.at_end:
        raise WireError(f"{len(cursor.data) - cursor.position // 8} bytes follow the last leaf")
    return header, payload


def history_after(frame: bytes, round: int, payload: MessageRow, schema: Schema, history: History | None) -> History:
    """Return the history of both ends once `frame` was sent or decoded, which may build on `history`."""
    if history is None or is_keyframe(frame):
        return History.begin(payload, schema, round, name_after(frame))
    return history.after(payload, round, name_after(frame))
