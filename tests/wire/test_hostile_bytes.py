"""Any bytes at all give a WireError or a payload that fits the schema, and never touch what is held."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_cases import RUN_ID, random_bits, resealed

from peermask.errors import WireError
from peermask.wire import Expected, FrameHeader, History, Schema, decode_frame, encode_frame

LAYERS = (70, 640, 1)
TOTAL = sum(LAYERS)


def payload_at(density):
    mask = random_bits(f"hostile {density}", TOTAL, density)
    values = np.where(mask, np.float32(0.5), np.float32(0))
    return {"mask": mask, "weights": values, "bias": np.ones(3, np.float32)}


BASE = payload_at(0.3)
SCHEMA = Schema.of(BASE, LAYERS)
EXPECTED = Expected(RUN_ID, SCHEMA)
DENSITIES = (0.0, 0.01, 0.1, 0.4, 0.9)
EARLY = History.begin(BASE, SCHEMA, 11, 11)
LATE = EARLY  # with classes of their own
for name in (12, 13, 14):
    LATE = LATE.after({**BASE, "mask": BASE["mask"] ^ random_bits(f"late {name}", TOTAL, 0.05)}, 11, name)
HISTORIES = (EARLY, LATE)
FRAMES = [
    encode_frame(FrameHeader(RUN_ID, 3, 12, history.name if history else None), payload_at(density), SCHEMA, history)
    for density in DENSITIES
    for history in (None, *HISTORIES)
]


def survives(frame):
    for history in HISTORIES:
        before = held(history)
        try:
            _, payload = decode_frame(frame, EXPECTED, history)
        except WireError:
            payload = BASE
        SCHEMA.check(payload)
        assert all(np.isfinite(leaf).all() for leaf in payload.values())
        assert held(history) == before


def held(history):
    return [*(leaf.tobytes() for leaf in history.payload.values()), history.contexts["mask"].states.tobytes()]


@given(st.binary(max_size=200))
def test_noise(frame):
    survives(frame)


edits = st.lists(
    st.tuples(st.integers(36, 400), st.sampled_from(["set", "cut", "add"]), st.binary(max_size=4)), max_size=4
)


@settings(max_examples=300)
@given(st.sampled_from(FRAMES), edits)
def test_damage_behind_a_right_checksum(frame, changes):
    data = bytearray(frame[:-4])
    for at, how, content in changes:
        stop = at + (0 if how == "add" else len(content))
        data[at:stop] = b"" if how == "cut" else content
    survives(resealed(bytes(data) + b"\0\0\0\0"))


@given(st.sampled_from(FRAMES), st.integers(0, 400))
def test_truncation(frame, length):
    survives(frame[:length])
    survives(resealed(frame[: max(length, 36)] + b"\0\0\0\0"))


def test_a_small_frame_cannot_announce_a_large_buffer():
    # A count of 2**35 - 1 positions in a frame of 50 bytes: refused by the layer's size, before any allocation.
    body = b"\x00" + b"\x02\xff\xff\xff\xff\x7f" + b"\x00\x00"
    survives(resealed(FRAMES[0][:36] + body + b"\0\0\0\0"))
