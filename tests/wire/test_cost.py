"""The cost of a frame is its length, and stays near the entropy bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from wire_cases import ALEXNET, RUN_ID, layer_tables, layered_masks, random_bits

from peermask.wire import FrameHeader, History, Schema, bitmap_size, encode_frame, frame_size
from peermask.wire.cost import entropy_bits, message_cost
from peermask.wire.receiver_state import ReceiverTensors, first_message, restore_receiver_state
from peermask.wire.schema import row_of
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


SIZES = (4, 4)
MASK = torch.tensor([[1, 0, 0, 0, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]], dtype=torch.bool)


def test_entropy_of_a_quarter_and_a_half() -> None:
    """4 H2(1/4) + 4 H2(1/2) = 3.245 + 4 bits; all or none costs nothing."""
    bits = entropy_bits(torch.tensor([[1, 2], [4, 0]]), SIZES)
    assert bits.tolist() == pytest.approx([3.2451 + 4.0, 0.0], abs=1e-4)


def test_what_papers_count() -> None:
    cost, _ = message_cost({"mask": MASK}, None, SIZES)
    assert cost.paper_bits.tolist() == [8, 8]
    assert cost.ones_bits.tolist() == [3, 4]


def test_real_values_cost_32_bits_and_their_positions() -> None:
    values = torch.tensor([[0.0, 1.5, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]])
    cost, _ = message_cost({"weights": values}, None, SIZES)
    assert cost.paper_bits.tolist() == [256]
    assert cost.ones_bits.tolist() == [64]
    assert float(cost.coded_bytes[0]) < float(cost.bitmap_bytes[0])


def rounds(count: int) -> list[dict[str, torch.Tensor]]:
    """Messages of three agents: a mask, values on it, and a bias."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(3, 1300, generator=generator) < 0.3
    messages = []
    for _ in range(count):
        mask = mask ^ (torch.rand(3, 1300, generator=generator) < 0.01)
        values = torch.where(mask, torch.randn(3, 1300, generator=generator), torch.zeros(()))
        messages.append({"mask": mask, "values": values, "bias": torch.randn(3, 7, generator=generator)})
    return messages


def test_coded_bytes_are_the_bytes_of_the_frame() -> None:
    sizes = (300, 1000)
    known = None
    histories: list[History | None] = [None] * 3
    for number, payload in enumerate(rounds(5)):
        schema = Schema.of_rows(payload, sizes)
        cost, known = message_cost(payload, known, sizes)
        for agent in range(3):
            row, history = row_of(payload, agent), histories[agent]
            header = FrameHeader(b"run-id-8", agent, 2, None if history is None else history.name)
            frame = encode_frame(header, row, schema, history)
            assert int(cost.coded_bytes[agent]) == len(frame)
            histories[agent] = History.begin(row, schema) if history is None else history.after(row)
        assert cost.kind.tolist() == [int(number > 0)] * 3


def test_what_is_known_comes_back_from_a_checkpoint() -> None:
    sizes, messages = (300, 1000), rounds(6)
    known = None
    for payload in messages[:4]:
        _, known = message_cost(payload, known, sizes)
    assert known is not None
    again = restore_receiver_state(known.tensors(), Schema.of_rows(messages[0], sizes), torch.device("cpu"))
    for payload in messages[4:]:
        (cost, known), (reference, again) = message_cost(payload, known, sizes), message_cost(payload, again, sizes)
        assert cost.coded_bytes.tolist() == reference.coded_bytes.tolist()


def test_a_gpu_saves_what_a_cpu_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a checkpoint of the one can be continued on the other; also of agents taken apart and put together."""
    payload, sizes = rounds(1)[0], (300, 1000)
    schema = Schema.of_rows(payload, sizes)
    wanted = first_message(payload, schema).tensors()
    monkeypatch.setattr("peermask.wire.receiver_state.by_kernels", lambda _: True)
    first, again = first_message(payload, schema), restore_receiver_state(wanted, schema, torch.device("cpu"))
    assert isinstance(first, ReceiverTensors)
    assert isinstance(again, ReceiverTensors)
    assert torch.equal(again.masks["mask"].weights, first.masks["mask"].weights)
    for each in (first, again, ReceiverTensors.join(first.apart())):
        saved = each.tensors()
        assert set(saved) == set(wanted)
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in saved.items())


def test_an_opening_is_known_at_first() -> None:
    sizes, (opening, payload) = (300, 1000), [{"mask": message["mask"]} for message in rounds(2)]
    known = first_message(opening, Schema.of_rows(opening, sizes))
    cost, _ = message_cost(payload, known, sizes)
    alone, _ = message_cost(payload, None, sizes)
    assert cost.kind.tolist() == [1, 1, 1]
    assert alone.kind.tolist() == [0, 0, 0]
    assert (cost.coded_bytes < alone.coded_bytes / 2).all()
