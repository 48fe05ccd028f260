"""The torch cost of all agents equals the encoder's, to the byte."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_cases import layer_tables, layered_masks, random_bits

from peermask.wire import Schema, frame_size
from peermask.wire.device_cost import payload_frame_size_torch, set_size_torch
from peermask.wire.sets import plan_set


def drawn_payload(data, layers, agents=3):
    """A mask, values on it (or beside it), and a bias, for each agent."""
    mask, support = (np.stack([data.draw(layered_masks(layers))[1] for _ in range(agents)]) for _ in range(2))
    support = mask if data.draw(st.booleans()) else support
    values = np.where(support, np.float32(1.5), np.float32(0))
    return {"mask": mask, "values": values, "bias": np.ones((agents, 3), np.float32)}


def size_of_each(payload, base, layers):
    schema = Schema.of({name: leaf[0] for name, leaf in payload.items()}, layers)
    rows = range(len(payload["mask"]))

    def row(leaves, agent):
        return None if leaves is None else {name: leaf[agent] for name, leaf in leaves.items()}

    return [frame_size(row(payload, agent), schema, row(base, agent)).total for agent in rows]


def as_torch(payload):
    return {name: torch.from_numpy(leaf) for name, leaf in payload.items()}


@given(st.data(), layer_tables)
@settings(max_examples=50)
def test_same_bytes_as_the_encoder(data, layers):
    payload, base = drawn_payload(data, layers), drawn_payload(data, layers)
    alone = payload_frame_size_torch(as_torch(payload), None, layers)
    after = payload_frame_size_torch(as_torch(payload), as_torch(base), layers)
    assert alone.tolist() == size_of_each(payload, None, layers)
    assert after.tolist() == size_of_each(payload, base, layers)


def test_large_layers_too():
    layers = (100_000, 3_000)
    densities = (0.0, 0.0005, 0.02, 0.3, 0.39, 0.5, 0.97, 1.0)
    members = np.stack([random_bits("large", sum(layers), density) for density in densities])
    sizes = [plan_set(row, layers).size for row in members]
    assert set_size_torch(torch.from_numpy(members), layers).tolist() == sizes


def test_every_set_of_nine_weights():
    members = (np.arange(2**9)[:, None] >> np.arange(9)) & 1 == 1  # [512, 9]
    for layers in ((9,), (4, 5)):
        sizes = [plan_set(row, layers).size for row in members]
        assert set_size_torch(torch.from_numpy(members), layers).tolist() == sizes
