"""What a payload costs on the wire, without producing the bytes: the encoder's own plan, added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from peermask.wire.frame import CHECKSUM, HEADER, builds_on, plan_frame
from peermask.wire.history import History
from peermask.wire.leaves import Kind
from peermask.wire.schema import MessageRow, Schema

FRAME_BYTES = HEADER.size + CHECKSUM.size

FrameKind: TypeAlias = Literal["empty", "delta", "keyframe", "sparse", "dense"]


@dataclass(frozen=True)
class FrameCost:
    """Bytes of one frame: `framing` is header, checksum, kind bytes and layer tables, `body` all the rest."""

    total: int
    framing: int
    body: int
    kind: FrameKind
    is_delta: bool = False  # whether it builds on a history


def frame_size(payload: MessageRow, schema: Schema, history: History | None = None) -> FrameCost:
    """`total` equals `len(encode_frame(...))`; a payload without leaves is not sent and costs nothing."""
    if not schema.leaves:
        return FrameCost(0, 0, 0, "empty")
    plans = plan_frame(payload, schema, history)
    total = FRAME_BYTES + sum(plan.size for plan in plans)
    kinds = [plan.kind for plan in plans]
    framing = FRAME_BYTES + sum(plan.table_bytes for plan in plans)
    return FrameCost(total, framing, total - framing, kind_of(kinds), builds_on(history, plans, schema))


def kind_of(kinds: list[Kind]) -> FrameKind:
    """The word for the costliest kind of leaf in a frame."""
    if Kind.DENSE in kinds:
        return "dense"
    if any(kind > Kind.DENSE for kind in kinds):
        return "sparse"
    return "keyframe" if Kind.KEYFRAME in kinds else "delta"


def bitmap_size(schema: Schema) -> int:
    """The plain alternative: the same header and checksum, one bit per mask weight, four bytes per value."""
    body = sum((leaf.size + 7) // 8 if leaf.is_mask else 4 * leaf.size for leaf in schema.leaves)
    return FRAME_BYTES + body if schema.leaves else 0
