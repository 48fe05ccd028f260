"""The kernels that count bytes, interpreted on a CPU, against the codec."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peermask.streams import stream
from peermask.wire import History, frame_size
from peermask.wire.cost import count_frames_triton, message_cost
from peermask.wire.receiver_state import first_receiver_masks, flips_size_triton
from peermask.wire.schema import Payload, Schema

pytestmark = pytest.mark.usefixtures("interpreted")

DENSITIES = (0.0, 0.001, 0.02, 0.3, 0.5, 0.7, 0.98, 1.0)


def bits(purpose: str, agents: int, size: int, density: float) -> Tensor:
    return torch.from_numpy(stream(0, purpose).uniform(agents * size) < density).view(agents, size)


def agrees(payload: Payload, base: Payload | None, sizes: tuple[int, ...], block: int = 32) -> None:
    """The interpreter takes an entry at a time, so that blocks are small here."""
    rows = list(payload.values())
    cuts = [sizes if leaf.shape[1] == sum(sizes) else (leaf.shape[1],) for leaf in rows]
    held = None if base is None else [base[name] for name in payload]
    flips = {
        i: flips_size_triton(rows[i], first_receiver_masks(before, cuts[i]), block)
        for i, before in enumerate(held or ())
        if before.dtype == torch.bool
    }
    ones, entropy, coded, kind = count_frames_triton(rows, held, cuts, flips, block)
    cost, _ = message_cost(payload, None, sizes)  # on a CPU by the codec's own plan
    schema = Schema.of_rows(payload, sizes)
    for agent in range(len(rows[0])):
        row = {name: leaf[agent].numpy() for name, leaf in payload.items()}
        older = None if base is None else {name: leaf[agent].numpy() for name, leaf in base.items()}
        planned = frame_size(row, schema, None if older is None else History.begin(older, schema))
        assert (int(coded[agent]), bool(kind[agent])) == planned
    assert ones.tolist() == cost.ones_bits.tolist()
    assert entropy.tolist() == pytest.approx(cost.entropy_bytes.tolist(), rel=1e-12, abs=1e-9)


@given(
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=4).map(tuple),
    density=st.sampled_from(DENSITIES),
    flips=st.none() | st.sampled_from(DENSITIES),
    block=st.sampled_from([16, 32]),
    seed=st.integers(0, 99),
)
@settings(max_examples=10)
def test_masks_of_any_density(
    sizes: tuple[int, ...], density: float, flips: float | None, block: int, seed: int
) -> None:
    mask = bits(f"{seed}", 2, sum(sizes), density)
    base = None if flips is None else {"mask": mask ^ bits(f"{seed}/flips", 2, sum(sizes), flips)}
    agrees({"mask": mask}, base, sizes, block)


@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("on_mask", [False, True])
def test_values_beside_masks(with_base: bool, on_mask: bool) -> None:
    """Two masks, values on one of them or not, -0.0 among them, and biases."""
    sizes = (100, 61)
    mask, support = bits("mask", 3, 161, 0.3), bits("support", 3, 161, 0.6)
    values = torch.where(mask if on_mask else bits("where", 3, 161, 0.2), torch.tensor(1.5), torch.tensor(0.0))
    values[1, mask[1].nonzero()[0]] = -0.0
    payload = {"mask": mask, "support": support, "weights": values, "rest": torch.ones(3, 5)}
    base = {
        "mask": mask ^ bits("flips", 3, 161, 0.02),
        "support": support,
        "weights": values * 2,
        "rest": -payload["rest"],
    }
    agrees(payload, base if with_base else None, sizes)


@pytest.mark.parametrize("density", [0.2, 1.0])
def test_values_alone_are_a_delta_where_their_support_is(density: float) -> None:
    values = torch.where(bits("alone", 2, 161, density), torch.tensor(1.5), torch.tensor(0.0))
    agrees({"weights": values}, {"weights": 2 * values}, (100, 61))


def test_dense_values_and_nothing_else() -> None:
    agrees({"weights": torch.ones(2, 40), "rest": torch.zeros(2, 3)}, None, (33, 7))


def test_every_set_of_five_weights() -> None:
    mask = torch.from_numpy((np.arange(2**5)[:, None] >> np.arange(5)) & 1 == 1)  # [32, 5]
    agrees({"mask": mask}, {"mask": mask.roll(5, 0)}, (5,), 16)


@pytest.mark.parametrize("density", [0.0005, 0.4])
def test_a_layer_of_more_blocks_than_are_joined_at_once(density: float) -> None:
    sizes = (5, 5_000, 20)
    mask = bits("long", 1, sum(sizes), density)
    agrees({"mask": mask}, None, sizes, 16)


def test_a_leaf_of_more_layers_than_are_added_at_once() -> None:
    sizes = (3, 1) * 40
    agrees({"mask": bits("layers", 1, sum(sizes), 0.4)}, None, sizes, 16)


def test_whole_blocks() -> None:
    mask = bits("block", 1, 4_500, 0.05)
    agrees({"mask": mask}, None, (4_400, 100), 4_096)


def test_rows_and_columns_may_lie_apart() -> None:
    mask, values = bits("apart", 4, 120, 0.3), torch.randn(4, 90, generator=torch.Generator().manual_seed(0))
    base = {"mask": bits("base", 2, 60, 0.3), "weights": values[2:, 30:]}
    agrees({"mask": mask[::2, ::2], "weights": values[:2, :60]}, base, (50, 10))
