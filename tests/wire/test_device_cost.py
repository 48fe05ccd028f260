"""The torch cost of all agents equals the encoder's, to the byte."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_cases import layer_tables, layered_masks, random_bits

from peermask.wire import Schema, frame_size
from peermask.wire.cost import FRAME_BYTES
from peermask.wire.device_cost import delta_size_torch, keyframe_size_torch, mask_frame_size_torch
from peermask.wire.sets import plan_set


@given(st.data(), layer_tables)
@settings(max_examples=60)
def test_same_bytes_as_the_encoder(data, layers):
    masks = np.stack([data.draw(layered_masks(layers))[1] for _ in range(3)])
    base = np.stack([data.draw(layered_masks(layers))[1] for _ in range(3)])
    schema = Schema.of({"mask": masks[0]}, layers)
    both = mask_frame_size_torch(torch.from_numpy(masks), torch.from_numpy(base), layers)
    alone = mask_frame_size_torch(torch.from_numpy(masks), None, layers)
    assert both.tolist() == [
        frame_size({"mask": m}, schema, {"mask": b}).total for m, b in zip(masks, base, strict=True)
    ]
    assert alone.tolist() == [frame_size({"mask": m}, schema).total for m in masks]


def test_large_layers_too():
    layers = (100_000, 3_000)
    flips = np.stack([random_bits("large", sum(layers), p) for p in (0.0005, 0.02, 0.3, 0.97)])
    wanted = [FRAME_BYTES + 1 + plan_set(row, layers).size for row in flips]
    assert delta_size_torch(torch.from_numpy(flips), layers).tolist() == wanted
    assert keyframe_size_torch(torch.from_numpy(flips), layers).tolist() == wanted
