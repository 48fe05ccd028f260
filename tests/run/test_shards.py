"""Who has which agents, and whose messages go where: worked by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from peermask.graph import build_graph, build_mixing
from peermask.graph.topology import topologies
from peermask.run.rank_exchange import (
    Routes,
    divide,
    pack,
    pack_bits,
    pack_payload,
    packed_width,
    payload_width,
    senders_heard,
    unpack_bits,
    unpack_payload,
)


def ring(agents: int) -> list[Tensor]:
    """What three ranks hear on a ring."""
    options = topologies["ring"].options()
    mixing = build_mixing(build_graph("ring", options, agents, 0), [1.0] * agents)
    return [senders_heard(mixing.rows(rows)) for rows in divide(agents, 3)]


def test_shards_are_in_order_and_even() -> None:
    assert divide(7, 3) == [slice(0, 2), slice(2, 4), slice(4, 7)]
    assert divide(3, 3) == [slice(0, 1), slice(1, 2), slice(2, 3)]


def test_routes_of_a_ring_of_seven() -> None:
    """Ranks have 0 1 | 2 3 | 4 5 6; only the ends of each shard are heard elsewhere."""
    hearing = ring(7)
    assert [ids.tolist() for ids in hearing] == [[0, 1, 2, 6], [1, 2, 3, 4], [0, 3, 4, 5, 6]]
    first, second, third = (Routes.of(hearing, 7, rank) for rank in range(3))
    assert first.here == slice(0, 2)
    assert {rank: rows.tolist() for rank, rows in first.outgoing.items()} == {1: [1], 2: [0]}
    assert first.incoming == {1: slice(2, 3), 2: slice(3, 4)}
    assert second.here == slice(1, 3)
    assert {rank: rows.tolist() for rank, rows in second.outgoing.items()} == {0: [0], 2: [1]}
    assert second.incoming == {0: slice(0, 1), 2: slice(3, 4)}
    assert third.here == slice(2, 5)
    assert {rank: rows.tolist() for rank, rows in third.outgoing.items()} == {0: [2], 1: [0]}
    assert third.incoming == {0: slice(0, 1), 1: slice(1, 2)}


@given(agents=st.integers(3, 40), size=st.integers(1, 3))
def test_what_one_sends_is_what_the_other_awaits(agents: int, size: int) -> None:
    options = topologies["ring"].options()
    mixing = build_mixing(build_graph("ring", options, agents, 0), [1.0] * agents)
    hearing = [senders_heard(mixing.rows(rows)) for rows in divide(agents, size)]
    routes = [Routes.of(hearing, agents, rank) for rank in range(size)]
    for one in range(size):
        for other in range(size):
            sent = routes[one].outgoing.get(other, torch.tensor([])) + divide(agents, size)[one].start
            awaited = routes[other].columns[routes[other].incoming.get(one, slice(0, 0))]
            assert sent.tolist() == awaited.tolist()


def test_masks_are_packed_eight_to_a_byte() -> None:
    masks = torch.tensor([[1, 0, 0, 0, 0, 0, 0, 1, 1], [0, 1, 0, 0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    assert pack(masks).tolist() == [[0b10000001, 0b10000000], [0b01000000, 0]]
    assert packed_width(masks) == 2


@pytest.mark.parametrize("width", [1, 7, 8, 9, 64, 1001])
def test_what_is_packed_comes_back(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    payload = {
        "mask": torch.rand(5, width, generator=generator) < 0.3,
        "values": torch.randn(5, 3, generator=generator),
        "counts": torch.randint(0, 9, (5, 2, 2), generator=generator),
    }
    rows = torch.tensor([0, 2, 4])
    packed = pack_payload(payload, rows)
    assert len(packed) == 3 * payload_width(payload)
    whole = {name: torch.zeros(7, *leaf.shape[1:], dtype=leaf.dtype) for name, leaf in payload.items()}
    unpack_payload(packed, whole, slice(2, 5))
    for name, leaf in payload.items():
        assert torch.equal(whole[name][2:5], leaf[rows])
        assert not whole[name][[0, 1, 5, 6]].any()


@pytest.mark.parametrize("width", [1, 8, 101])
def test_a_gpu_packs_as_a_cpu_does(width: int) -> None:
    masks = torch.rand(4, width, generator=torch.Generator().manual_seed(0)) < 0.5
    assert torch.equal(pack_bits(masks), pack(masks))
    assert torch.equal(unpack_bits(pack(masks), width), masks)
