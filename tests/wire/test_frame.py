"""Frames: the header, byte for byte, and every reason to refuse one."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_cases import RUN_ID, layer_tables, layered_masks, resealed

from peermask.errors import WireError
from peermask.wire import Expected, FrameHeader, Leaf, Schema, decode_frame, encode_frame

LAYERS = (64, 8)
SCHEMA = Schema((Leaf("mask", True, LAYERS),))
EXPECTED = Expected(RUN_ID, SCHEMA, sender=3)
BASE = {"mask": np.arange(72) % 2 == 0}
FLIPS = np.isin(np.arange(72), [2, 3, 40])
PAYLOAD = {"mask": BASE["mask"] ^ FLIPS}
HEADER = FrameHeader(RUN_ID, 3, 12, 11)
FRAME = encode_frame(HEADER, PAYLOAD, SCHEMA, BASE)


def held(round):
    return BASE if round == 11 else None


def test_a_frame_byte_for_byte():
    parts = [
        "504d" + "01" + "01",  # PM, version 1, one leaf
        "706565726d61736b",  # run id
        "03000000" + "0c000000" + "0b000000",  # agent 3, round 12, base round 11
        "88e96f4b",  # CRC-32 of "mask:mask:64,8;"
        "07000000",  # bytes of the body
        "01" + "0203" + "00" + "204c80",  # a delta: 3 gaps in layer 0, nothing in layer 1, the bits of test_gaps
        "9e3779d6",  # CRC-32 of all before
    ]
    assert FRAME.hex() == "".join(parts)


def test_header_and_payload_come_back():
    header, payload = decode_frame(FRAME, EXPECTED, held)
    assert header == HEADER
    assert (payload["mask"] == PAYLOAD["mask"]).all()


@given(st.data(), layer_tables)
def test_every_mask_comes_back_with_and_without_a_base(data, layers):
    mask, base = (data.draw(layered_masks(layers))[1] for _ in range(2))
    schema = Schema((Leaf("mask", True, layers),))
    for header, older in ((FrameHeader(RUN_ID, 0, 5), None), (FrameHeader(RUN_ID, 0, 5, 4), {"mask": base})):
        frame = encode_frame(header, {"mask": mask}, schema, older)
        _, back = decode_frame(frame, Expected(RUN_ID, schema), lambda _, older=older: older)
        assert (back["mask"] == mask).all()


def test_a_base_that_does_not_help_is_not_named():
    far = {"mask": ~PAYLOAD["mask"]}
    far["mask"][::7] ^= True
    frame = encode_frame(HEADER, {"mask": np.zeros(72, bool)}, SCHEMA, far)
    header, _ = decode_frame(frame, EXPECTED, held)
    assert header.base_round is None


def changed(offset, format, value):
    frame = bytearray(FRAME)
    struct.pack_into(format, frame, offset, value)
    return resealed(bytes(frame))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"", "0 bytes"),
        (FRAME[:35], "35 bytes"),
        (FRAME[:-1], "announces"),
        (FRAME + b"\0", "announces"),
        (FRAME[:-4] + b"\0\0\0\0", "damaged"),
        (changed(0, "<2s", b"ZZ"), "not a peermask frame"),
        (changed(2, "<B", 2), "version 2"),
        (changed(3, "<B", 2), "2 leaves"),
        (changed(4, "<8s", b"another!"), "belongs to run"),
        (changed(12, "<I", 4), "from agent 4, expected 3"),
        (changed(16, "<I", 11), "not older"),
        (changed(16, "<I", 2**32 - 1), "round is 4294967295"),
        (changed(20, "<I", 10), "round 10 of agent 3, which is not held"),
        (changed(20, "<I", 2**32 - 1), "without a base"),
        (changed(24, "<I", 0), "another model"),
        (resealed(FRAME[:-4] + b"\0" + FRAME[-4:]), "1 bytes follow"),
    ],
)
def test_bad_frames_are_refused_with_one_line(frame, message):
    with pytest.raises(WireError, match=message) as caught:
        decode_frame(frame, EXPECTED, held)
    assert "\n" not in str(caught.value)


def test_every_single_flipped_bit_is_noticed():
    for bit in range(8 * len(FRAME)):
        frame = bytearray(FRAME)
        frame[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            decode_frame(bytes(frame), EXPECTED, held)


@pytest.mark.parametrize("run_id", [b"", b"seven77", b"nine99999"])
def test_a_run_id_has_eight_bytes(run_id):
    with pytest.raises(WireError, match="run id"):
        FrameHeader(run_id, 0, 0)


def test_mistakes_of_the_sender_are_named():
    with pytest.raises(WireError, match="must not be given"):
        encode_frame(FrameHeader(RUN_ID, 3, 12), PAYLOAD, SCHEMA, BASE)
    with pytest.raises(WireError, match="must be given"):
        encode_frame(HEADER, PAYLOAD, SCHEMA)
    with pytest.raises(WireError, match="nothing to send"):
        encode_frame(FrameHeader(RUN_ID, 3, 12), {}, Schema(()))
