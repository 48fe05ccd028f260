"""A frame: one payload of one agent and round as bytes, with a header before it and a checksum after it.

The checksum is CRC-32. It finds every burst of up to 32 bits and is there against accidents; against people
there is the transport's authentication, and a longer digest without a key would add bytes and no protection.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from peermask.errors import WireError
from peermask.wire.cursor import Cursor
from peermask.wire.leaves import NEEDS_BASE, LeafPlan, decode_leaf, plan_leaf
from peermask.wire.schema import Array, Payload, Schema

MAGIC = b"PM"
VERSION = 1
NO_BASE = 2**32 - 1
RUN_ID_BYTES = 8
# magic, version, leaves, run id, sender, round, base round, schema fingerprint, bytes of the body
HEADER = struct.Struct("<2sBB8sIIIII")
CHECKSUM = struct.Struct("<I")
MAX_FRAME_BYTES = 2**31


@dataclass(frozen=True)
class FrameHeader:
    """Who speaks, about which round, and against which older round of the same sender (or none)."""

    run_id: bytes
    sender: int
    round: int
    base_round: int | None = None

    def __post_init__(self) -> None:
        if len(self.run_id) != RUN_ID_BYTES:
            raise WireError(f"run id has {len(self.run_id)} bytes, expected {RUN_ID_BYTES}")
        for name in ("sender", "round", "base_round"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < NO_BASE:
                raise WireError(f"{name} is {value}, allowed: 0 to {NO_BASE - 1}")
        if self.base_round is not None and self.base_round >= self.round:
            raise WireError(f"base round {self.base_round} is not older than round {self.round}")


@dataclass(frozen=True)
class Expected:
    """What a receiver is ready to take; a sender of None means any."""

    run_id: bytes
    schema: Schema
    sender: int | None = None


def plan_frame(payload: Payload, schema: Schema, base: Payload | None) -> list[LeafPlan]:
    """How each leaf will be written; shared by the encoder and its cost."""
    schema.check(payload)
    if base is not None:
        schema.check(base)
    masks = {i: payload[leaf.name] for i, leaf in enumerate(schema.leaves) if leaf.is_mask}
    return [
        plan_leaf(leaf, payload[leaf.name], None if base is None else base[leaf.name], masks) for leaf in schema.leaves
    ]


def encode_frame(header: FrameHeader, payload: Payload, schema: Schema, base: Payload | None = None) -> bytes:
    """The smallest frame; `base` is the payload of `header.base_round` and may turn out not to be needed."""
    if (base is None) != (header.base_round is None):
        raise WireError(f"base round is {header.base_round}, so its payload must {'not ' * (base is not None)}be given")
    if not schema.leaves:
        raise WireError("payload has no leaves: there is nothing to send")
    plans = plan_frame(payload, schema, base)
    if not any(plan.kind in NEEDS_BASE for plan in plans):
        header = replace(header, base_round=None)
    body = b"".join(plan.encode() for plan in plans)
    head = HEADER.pack(
        MAGIC,
        VERSION,
        len(schema.leaves),
        header.run_id,
        header.sender,
        header.round,
        NO_BASE if header.base_round is None else header.base_round,
        schema.fingerprint,
        len(body),
    )
    return head + body + CHECKSUM.pack(zlib.crc32(body, zlib.crc32(head)))


def read_header(data: bytes, expected: Expected) -> FrameHeader:
    """The header of a frame that is whole, undamaged and meant for this receiver."""
    if not HEADER.size + CHECKSUM.size <= len(data) <= MAX_FRAME_BYTES:
        raise WireError(f"frame has {len(data)} bytes, allowed: {HEADER.size + CHECKSUM.size} to {MAX_FRAME_BYTES}")
    magic, version, leaves, run_id, sender, round_, base, fingerprint, body = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise WireError(f"frame starts with {magic.hex()}, expected {MAGIC.hex()}: not a peermask frame")
    if version != VERSION:
        raise WireError(f"frame has version {version}, this end speaks {VERSION}; update the older of the two")
    if len(data) != HEADER.size + body + CHECKSUM.size:
        raise WireError(f"frame has {len(data)} bytes, its header announces {HEADER.size + body + CHECKSUM.size}")
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
    return FrameHeader(run_id, sender, round_, None if base == NO_BASE else base)


def decode_frame(
    data: bytes, expected: Expected, base_lookup: Callable[[int], Payload | None]
) -> tuple[FrameHeader, Mapping[str, Array]]:
    """Header and payload, or a WireError; `base_lookup` gives the payload held of an older round."""
    header = read_header(data, expected)
    base = None if header.base_round is None else base_lookup(header.base_round)
    if header.base_round is not None:
        if base is None:
            raise WireError(f"frame builds on round {header.base_round} of agent {header.sender}, which is not held")
        expected.schema.check(base)
    cursor = Cursor(data[HEADER.size : -CHECKSUM.size])
    payload: dict[str, Array] = {}
    masks: dict[int, Array] = {}
    for index, leaf in enumerate(expected.schema.leaves):
        payload[leaf.name] = decode_leaf(cursor, leaf, base, masks)
        if leaf.is_mask:
            masks[index] = payload[leaf.name]
    if not cursor.at_end:
        raise WireError(f"{len(cursor.data) - cursor.position // 8} bytes follow the last leaf")
    return header, payload
