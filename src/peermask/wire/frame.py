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

from peermask.errors import WireError
from peermask.wire.bits import Cursor
from peermask.wire.history import History
from peermask.wire.leaves import NEEDS_HISTORY, LeafPlan, decode_leaf, plan_leaf
from peermask.wire.schema import Array, MessageRow, Schema

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
class Expected:
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


def read_header(data: bytes, expected: Expected) -> FrameHeader:
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
    data: bytes, expected: Expected, history: History | None = None
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


def history_after(
    frame: bytes, header: FrameHeader, payload: MessageRow, schema: Schema, history: History | None
) -> History:
    """Return the history of both ends once `frame` was sent or decoded; `header` is the frame's own."""
    if header.history is None or history is None:
        return History.begin(payload, schema, header.round, name_after(frame))
    return history.after(payload, header.round, name_after(frame))
