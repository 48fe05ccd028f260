"""Payloads as bytes: the codec of masks and values, frames, and what they cost."""

from peermask.wire.frame import Expectation, FrameHeader, bitmap_size, decode_frame, encode_frame, frame_size
from peermask.wire.history import History
from peermask.wire.mailbox import Inbox, Outbox
from peermask.wire.schema import Leaf, Schema

__all__ = [
    "Expectation", "FrameHeader", "History", "Inbox", "Leaf", "Outbox", "Schema", "bitmap_size", "decode_frame",
    "encode_frame", "frame_size",
]  # fmt: skip
