"""Frames: the header, byte for byte, and every reason to refuse one."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_cases import RUN_ID, layer_tables, layered_masks, resealed

from peermask.errors import WireError
from peermask.wire import Expected, FrameHeader, History, Leaf, Schema, decode_frame, encode_frame
from peermask.wire.frame import name_after

LAYERS = (64, 8)
SCHEMA = Schema((Leaf("mask", True, LAYERS),))
EXPECTED = Expected(RUN_ID, SCHEMA, sender=3)
BASE = {"mask": np.arange(72) % 2 == 0}
FLIPS = np.isin(np.arange(72), [2, 3, 40])
PAYLOAD = {"mask": BASE["mask"] ^ FLIPS}
HISTORY = History.begin(BASE, SCHEMA, 11, 0xB)
HEADER = FrameHeader(RUN_ID, 3, 12, 0xB)
FRAME = encode_frame(HEADER, PAYLOAD, SCHEMA, HISTORY)


def test_a_frame_byte_for_byte():
    parts = [
        "504d" + "02" + "01",  # PM, version 2, one leaf
        "706565726d61736b",  # run id
        "03000000" + "0c000000" + "0b000000",  # agent 3, round 12, history b
        "88e96f4b",  # CRC-32 of "mask:mask:64,8;"
        "07000000",  # bytes of the body
        "01" + "0203" + "00" + "204c80",  # a delta, classes are layers: 3 gaps, nothing, the bits of test_gaps
        "fe08188c",  # CRC-32 of all before
    ]
    assert FRAME.hex() == "".join(parts)


def test_header_and_payload_come_back():
    header, payload = decode_frame(FRAME, EXPECTED, HISTORY)
    assert header == HEADER
    assert (payload["mask"] == PAYLOAD["mask"]).all()


@given(st.data(), layer_tables)
def test_every_mask_comes_back_with_and_without_a_history(data, layers):
    masks = [data.draw(layered_masks(layers))[1] for _ in range(data.draw(st.integers(1, 5)))]
    schema = Schema((Leaf("mask", True, layers),))
    history = None
    for mask in masks:
        header = FrameHeader(RUN_ID, 0, 5, None if history is None else history.name)
        frame = encode_frame(header, {"mask": mask}, schema, history)
        back_header, back = decode_frame(frame, Expected(RUN_ID, schema), history)
        assert back_header == header
        assert (back["mask"] == mask).all()
        history = History.begin(back, schema, 5, 9) if history is None else history.after(back, 5, name_after(frame))


def test_a_mask_sent_whole_goes_on_with_the_history():
    frame = encode_frame(HEADER, {"mask": np.zeros(72, bool)}, SCHEMA, HISTORY)
    assert frame[32] == 0  # a whole mask
    assert decode_frame(frame, EXPECTED, HISTORY)[0].history == 0xB


def test_values_that_need_no_history_name_none():
    payload = {"weights": np.ones(9, np.float32)}
    schema = Schema.of(payload, [9])
    history = History.begin(payload, schema, 11, 0xB)
    assert decode_frame(encode_frame(HEADER, payload, schema, history), Expected(RUN_ID, schema))[0].history is None


def test_of_version_1_keyframes_can_be_read_where_that_is_wanted():
    """They are the same, and tickets hold them."""
    old = bytearray(encode_frame(FrameHeader(RUN_ID, 3, 12), PAYLOAD, SCHEMA))
    old[2] = 1
    frame = resealed(bytes(old))
    with pytest.raises(WireError, match="version 1, this end has 2"):
        decode_frame(frame, EXPECTED, HISTORY)
    _, payload = decode_frame(frame, Expected(RUN_ID, SCHEMA, oldest=1))
    assert (payload["mask"] == PAYLOAD["mask"]).all()
    with pytest.raises(WireError, match="version 1 and is a delta"):
        decode_frame(changed(2, "<B", 1), Expected(RUN_ID, SCHEMA, oldest=1), HISTORY)


def changed(offset, format, value):
    frame = bytearray(FRAME)
    struct.pack_into(format, frame, offset, value)
    return resealed(bytes(frame))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"", "0 bytes"),
        (FRAME[:35], "35 bytes"),
        (FRAME[:-1], "its header says"),
        (FRAME + b"\0", "its header says"),
        (FRAME[:-4] + b"\0\0\0\0", "damaged"),
        (changed(0, "<2s", b"ZZ"), "not a peermask frame"),
        (changed(2, "<B", 1), "version 1, this end has 2; update the older"),
        (changed(2, "<B", 3), "version 3"),
        (changed(3, "<B", 2), "2 leaves"),
        (changed(4, "<8s", b"another!"), "belongs to run"),
        (changed(12, "<I", 4), "from agent 4, expected 3"),
        (changed(16, "<I", 2**32 - 1), "round is 4294967295"),
        (changed(20, "<I", 10), "builds on history 0000000a of agent 3, 0000000b is held"),
        (changed(20, "<I", 2**32 - 1), "names no history"),
        (changed(24, "<I", 0), "another model"),
        (resealed(FRAME[:-4] + b"\0" + FRAME[-4:]), "1 bytes follow"),
    ],
)
def test_bad_frames_are_refused_with_one_line(frame, message):
    with pytest.raises(WireError, match=message) as caught:
        decode_frame(frame, EXPECTED, HISTORY)
    assert "\n" not in str(caught.value)


def test_every_single_flipped_bit_is_noticed():
    for bit in range(8 * len(FRAME)):
        frame = bytearray(FRAME)
        frame[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            decode_frame(bytes(frame), EXPECTED, HISTORY)


@pytest.mark.parametrize("run_id", [b"", b"seven77", b"nine99999"])
def test_a_run_id_has_eight_bytes(run_id):
    with pytest.raises(WireError, match="run id"):
        FrameHeader(run_id, 0, 0)


def test_mistakes_of_the_sender_are_named():
    with pytest.raises(WireError, match="names history None, given is 11"):
        encode_frame(FrameHeader(RUN_ID, 3, 12), PAYLOAD, SCHEMA, HISTORY)
    with pytest.raises(WireError, match="names history 11, given is None"):
        encode_frame(HEADER, PAYLOAD, SCHEMA)
    with pytest.raises(WireError, match="nothing to send"):
        encode_frame(FrameHeader(RUN_ID, 3, 12), {}, Schema(()))
