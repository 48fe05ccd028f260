"""The cost of a frame is its length, and stays near the entropy bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from wire_cases import ALEXNET, RUN_ID, layer_tables, layered_masks, random_bits

from peermask.wire import FrameHeader, History, Schema, bitmap_size, encode_frame, frame_size
from peermask.wire.cost import entropy_bits
from peermask.wire.sets import slices


@given(st.data(), layer_tables)
def test_cost_equals_length(data, layers):
    mask, base = (data.draw(layered_masks(layers))[1] for _ in range(2))
    payload = {"mask": mask, "weights": np.where(mask, np.float32(2), np.float32(0))}
    older = {"mask": base, "weights": np.where(base, np.float32(1), np.float32(0))}
    schema = Schema.of(payload, layers)
    assert frame_size(payload, schema) == (len(encode_frame(FrameHeader(RUN_ID, 1, 2), payload, schema)), False)
    history = History.begin(older, schema, 1, 1)
    frame = encode_frame(FrameHeader(RUN_ID, 1, 2, 1), payload, schema, history)
    assert frame_size(payload, schema, history) == (len(frame), True)


def test_nothing_shared_costs_nothing():
    assert frame_size({}, Schema(())) == (bitmap_size(Schema(())), False) == (0, False)


def entropy_bytes(bits):
    """What no code for independent bits of these densities can do without."""
    ones = [np.count_nonzero(bits[part]) for part in slices(ALEXNET)]
    return float(entropy_bits(torch.tensor([ones]), ALEXNET)) / 8


def paper_mask(retention):
    kept = (retention, retention, retention, 0.9, 0.9)
    return np.concatenate([random_bits(f"{size} {k}", size, k) for size, k in zip(ALEXNET, kept, strict=True)])


@pytest.mark.parametrize("retention", [0.1, 0.2, 0.38, 0.5])
def test_a_keyframe_is_64_bytes_and_five_percent_above_its_bound_at_most(retention):
    mask = paper_mask(retention)
    size, is_delta = frame_size({"mask": mask}, Schema.of({"mask": mask}, ALEXNET))
    assert not is_delta
    assert size < 64 + 1.05 * entropy_bytes(mask)


@pytest.mark.parametrize("flipped", [200 / sum(ALEXNET), 0.001, 0.003, 0.01, 0.02])
def test_a_delta_is_64_bytes_and_four_percent_above_its_bound_at_most(flipped):
    base = paper_mask(0.3)
    flips = random_bits("flips", base.size, flipped)
    schema = Schema.of({"mask": base}, ALEXNET)
    size, is_delta = frame_size({"mask": base ^ flips}, schema, History.begin({"mask": base}, schema))
    assert is_delta
    assert size < 64 + 1.04 * entropy_bytes(flips)


def test_a_bitmap_is_header_bits_and_checksum():
    payload = {"mask": np.zeros(9, bool), "bias": np.zeros(2, np.float32)}
    assert bitmap_size(Schema.of(payload, [9])) == 36 + 2 + 8
