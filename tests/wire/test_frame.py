"""Frames: the header, byte for byte, and every reason to refuse one."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_cases import RUN_ID, layer_tables, layered_masks, random_bits, resealed

from peermask.errors import WireError
from peermask.wire import Expectation, FrameHeader, History, Leaf, Schema, decode_frame, encode_frame
from peermask.wire.frame import name_after

LAYERS = (64, 8)
SCHEMA = Schema((Leaf("mask", True, LAYERS),))
EXPECTED = Expectation(RUN_ID, SCHEMA, sender=3)
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
        back_header, back = decode_frame(frame, Expectation(RUN_ID, schema), history)
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
    assert decode_frame(encode_frame(HEADER, payload, schema, history), Expectation(RUN_ID, schema))[0].history is None


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


MIXED_LAYERS = (70, 640, 1)
TOTAL = sum(MIXED_LAYERS)


def payload_at(density):
    mask = random_bits(f"hostile {density}", TOTAL, density)
    values = np.where(mask, np.float32(0.5), np.float32(0))
    return {"mask": mask, "weights": values, "bias": np.ones(3, np.float32)}


MIXED_BASE = payload_at(0.3)
MIXED_SCHEMA = Schema.of(MIXED_BASE, MIXED_LAYERS)
MIXED_EXPECTED = Expectation(RUN_ID, MIXED_SCHEMA)
DENSITIES = (0.0, 0.01, 0.1, 0.4, 0.9)
EARLY = History.begin(MIXED_BASE, MIXED_SCHEMA, 11, 11)
LATE = EARLY  # with classes of their own
for name in (12, 13, 14):
    LATE = LATE.after({**MIXED_BASE, "mask": MIXED_BASE["mask"] ^ random_bits(f"late {name}", TOTAL, 0.05)}, 11, name)
HISTORIES = (EARLY, LATE)
FRAMES = [
    encode_frame(
        FrameHeader(RUN_ID, 3, 12, history.name if history else None), payload_at(density), MIXED_SCHEMA, history
    )
    for density in DENSITIES
    for history in (None, *HISTORIES)
]


def survives(frame):
    for history in HISTORIES:
        before = held(history)
        try:
            _, payload = decode_frame(frame, MIXED_EXPECTED, history)
        except WireError:
            payload = MIXED_BASE
        MIXED_SCHEMA.check(payload)
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


def test_masks_come_first_then_values_each_by_name():
    payload = {"b": np.zeros(3, np.float32), "z": np.zeros(3, bool), "a": np.zeros(3, bool)}
    assert [leaf.name for leaf in Schema.of(payload, [3]).leaves] == ["a", "z", "b"]


def test_a_leaf_of_another_size_is_one_layer():
    payload = {"mask": np.zeros(5, bool), "bias": np.zeros(2, np.float32)}
    assert [leaf.layers for leaf in Schema.of(payload, [3, 2]).leaves] == [(3, 2), (2,)]


def test_the_fingerprint_covers_names_kinds_and_layers():
    leaf = Leaf("mask", True, (16, 8))
    assert Schema((leaf,)).fingerprint == zlib.crc32(b"mask:mask:16,8;")
    others = [Leaf("mast", True, (16, 8)), Leaf("mask", False, (16, 8)), Leaf("mask", True, (8, 16))]
    assert len({Schema((other,)).fingerprint for other in [leaf, *others]}) == 4


@pytest.mark.parametrize("layers", [(), (0,), (2**28, 1), (1,) * 4097])
def test_impossible_layers_are_refused(layers):
    with pytest.raises(WireError, match="leaf 'mask' has"):
        Leaf("mask", True, layers)


def test_other_dtypes_shapes_and_names_are_refused():
    schema = Schema((Leaf("mask", True, (4,)),))
    with pytest.raises(WireError, match="allowed: bool, float32"):
        Schema.of({"mask": np.zeros(4, np.int64)}, [4])
    with pytest.raises(WireError, match=r"is bool \[3\], expected bool \[4\]"):
        schema.check({"mask": np.zeros(3, bool)})
    with pytest.raises(WireError, match=r"has leaves \['masks'\]"):
        schema.check({"masks": np.zeros(4, bool)})
    with pytest.raises(WireError, match="repeat"):
        Schema((Leaf("mask", True, (4,)), Leaf("mask", False, (4,))))
    with pytest.raises(WireError, match="17 leaves"):
        Schema(tuple(Leaf(f"m{i}", True, (4,)) for i in range(17)))
