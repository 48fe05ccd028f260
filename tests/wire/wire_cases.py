"""What the wire tests draw from: layered masks of any density, and frames damaged behind a right checksum."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from hypothesis import strategies as st

from peermask.streams import stream
from peermask.wire.frame import CHECKSUM, HEADER

RUN_ID = b"peermask"
ALEXNET = (4800, 204800, 819200, 196608, 1920)

densities = st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0])
layer_tables = st.lists(st.integers(1, 700), min_size=1, max_size=4).map(tuple)


def random_bits(purpose: str, size: int, density: float):
    return stream(0, purpose).uniform(size) < density


@st.composite
def layered_masks(draw, layers=None):
    """(layers, mask): noise of one density per layer, or any bits at all."""
    table = draw(layer_tables) if layers is None else layers
    if draw(st.booleans()):
        parts = [random_bits(str(draw(st.integers(0, 99))), size, draw(densities)) for size in table]
        return table, np.concatenate(parts)
    blob = draw(st.binary(min_size=(sum(table) + 7) // 8, max_size=(sum(table) + 7) // 8))
    return table, np.unpackbits(np.frombuffer(blob, np.uint8))[: sum(table)].astype(bool)


def resealed(frame: bytes) -> bytes:
    """A damaged frame with its length and checksum made right again."""
    content = bytearray(frame[: -CHECKSUM.size])
    struct.pack_into("<I", content, HEADER.size - 4, len(content) - HEADER.size)
    return bytes(content) + CHECKSUM.pack(zlib.crc32(content))
