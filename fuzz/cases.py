"""Schemas, payloads and valid frames for the fuzzer to start from, and frames whose checksum always fits.

A mutated frame nearly always dies at the checksum. `dressed` puts a right header and checksum around any body, so that
the layer tables and the decoders of gaps and values behind it are reached too.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np

from peermask.streams import stream
from peermask.wire import Expectation, FrameHeader, History, Schema, encode_frame
from peermask.wire.frame import CHECKSUM, HEADER, MAGIC, NO_HISTORY, VERSION
from peermask.wire.schema import MessageRow

RUN_ID = b"peermask"
SENDER, ROUND, NAME = 3, 12, 11


@dataclass(frozen=True)
class Case:
    """One schema with a history that the receiver holds, long enough to have classes of its own."""

    expected: Expectation
    history: History
    payloads: tuple[MessageRow, ...]

    def frames(self) -> list[bytes]:
        """Every payload as a keyframe and against the history."""
        schema = self.expected.schema
        alone, after = FrameHeader(RUN_ID, SENDER, ROUND), FrameHeader(RUN_ID, SENDER, ROUND, NAME)
        return [
            frame
            for payload in self.payloads
            for frame in (
                encode_frame(alone, payload, schema),
                encode_frame(after, payload, schema, self.history),
            )
        ]


def dressed(case: Case, body: bytes, with_history: bool) -> bytes:
    """`body` between a right header and a right checksum."""
    schema = case.expected.schema
    head = HEADER.pack(
        MAGIC,
        VERSION,
        len(schema.leaves),
        RUN_ID,
        SENDER,
        ROUND,
        NAME if with_history else NO_HISTORY,
        schema.fingerprint,
        len(body),
    )
    return head + body + CHECKSUM.pack(zlib.crc32(head + body))


def resealed(frame: bytes) -> bytes:
    """`frame` with its length field and checksum made right, whatever else was done to it."""
    if len(frame) < HEADER.size + CHECKSUM.size:
        return frame
    content = bytearray(frame[: -CHECKSUM.size])
    struct.pack_into("<I", content, HEADER.size - 4, len(content) - HEADER.size)
    return bytes(content) + CHECKSUM.pack(zlib.crc32(content))


def make_cases() -> list[Case]:
    """A mask alone, values alone, and values on a mask beside a bias; each at several densities."""
    layers = (70, 640, 1)
    total = sum(layers)
    masks = [uniform(f"mask {p}", total) < p for p in (0.0, 0.01, 0.1, 0.4, 0.9, 1.0)]
    values = [np.where(mask, uniform("values", total).astype(np.float32) + 1, np.float32(0)) for mask in masks]
    bias = uniform("bias", 5).astype(np.float32)
    alone = [{"mask": mask} for mask in masks]
    floats = [{"weights": value} for value in values]
    both = [{"mask": m, "weights": v, "bias": bias} for m, v in zip(masks, values, strict=True)]
    return [case(payloads, layers) for payloads in (alone, floats, both)]


def case(payloads: list[MessageRow], layers: tuple[int, ...]) -> Case:
    schema = Schema.of(payloads[0], layers)
    history = History.begin(payloads[3], schema)
    for number in range(4):
        flips = uniform(f"flips {number}", sum(layers)) < 0.05
        later = {name: leaf ^ flips if leaf.dtype == np.bool_ else leaf for name, leaf in history.payload.items()}
        history = history.after(later, ROUND - 1, NAME)
    return Case(Expectation(RUN_ID, schema), history, tuple(payloads))


def uniform(purpose: str, count: int) -> np.typing.NDArray[np.float64]:
    return stream(0, purpose).uniform(count)  # [count]
