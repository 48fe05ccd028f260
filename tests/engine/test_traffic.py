"""Costs of a message of eight mask bits in two layers, by hand, and against the codec's own bytes."""

from __future__ import annotations

import pytest
import torch

from peermask.engine.traffic import entropy_bits, message_cost
from peermask.wire import FrameHeader, Schema, encode_frame
from peermask.wire.device_cost import count_ones, payload_frame_size_torch

SIZES = (4, 4)
MASK = torch.tensor([[1, 0, 0, 0, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]], dtype=torch.bool)


def test_entropy_of_a_quarter_and_a_half() -> None:
    """4 H2(1/4) + 4 H2(1/2) = 3.245 + 4 bits; all or none costs nothing."""
    bits = entropy_bits(torch.tensor([[1, 2], [4, 0]]), SIZES)
    assert bits.tolist() == pytest.approx([3.2451 + 4.0, 0.0], abs=1e-4)


def test_what_papers_count() -> None:
    cost = message_cost({"mask": MASK}, None, SIZES)
    assert cost.paper_bits.tolist() == [8, 8]
    assert cost.ones_bits.tolist() == [3, 4]


def test_real_values_cost_32_bits_and_their_positions() -> None:
    values = torch.tensor([[0.0, 1.5, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]])
    cost = message_cost({"weights": values}, None, SIZES)
    assert cost.paper_bits.tolist() == [256]
    assert cost.ones_bits.tolist() == [64]
    assert float(cost.coded_bytes[0]) < float(cost.bitmap_bytes[0])


@pytest.mark.parametrize("with_base", [False, True])
def test_coded_bytes_are_the_bytes_of_the_frame(with_base: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = (300, 1000)
    mask = torch.rand(3, 1300, generator=generator) < 0.3
    before = mask ^ (torch.rand(3, 1300, generator=generator) < 0.01)
    values = torch.where(mask, torch.randn(3, 1300, generator=generator), torch.zeros(()))
    payload = {"mask": mask, "values": values, "bias": torch.randn(3, 7, generator=generator)}
    base = {"mask": before, "values": values * before, "bias": payload["bias"]} if with_base else None
    cost = message_cost(payload, base, sizes)
    for agent in range(3):
        row = {name: leaf[agent].numpy() for name, leaf in payload.items()}
        held = None if base is None else {name: leaf[agent].numpy() for name, leaf in base.items()}
        header = FrameHeader(b"run-id-8", agent, 2, 1 if with_base else None)
        frame = encode_frame(header, row, Schema.of(row, sizes), held)
        assert int(cost.coded_bytes[agent]) == len(frame)
    assert payload_frame_size_torch(payload, base, sizes).tolist() == cost.coded_bytes.tolist()
    counted = {"mask": count_ones(mask, sizes)}
    assert payload_frame_size_torch(payload, base, sizes, counted).tolist() == cost.coded_bytes.tolist()
