"""The kernels that follow what receivers know, interpreted on a CPU, against the codec's own contexts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peermask.kernels.contexts import first_known, flips_size_triton, known_after_triton, known_again
from peermask.streams import stream
from peermask.wire.contexts import Contexts, plan_flips

pytestmark = pytest.mark.usefixtures("interpreted")

AGENTS = 2


def bits(purpose: str, size: int, density: float) -> torch.Tensor:
    return torch.from_numpy(stream(0, purpose).uniform(AGENTS * size) < density).view(AGENTS, size)


def follows(
    layers: tuple[int, ...], rates: list[float], block: int, seed: int = 0, density: float = 0.4, often: float = 0.1
) -> None:
    """Lengths and all that is known, after every message; some of the weights flip far more often."""
    size = sum(layers)
    mask, hot = bits(f"mask {seed}", size, density), bits(f"hot {seed}", size, often)
    known, contexts = first_known(mask, layers), [Contexts.begin(row.numpy(), layers) for row in mask]
    for number, rate in enumerate(rates):
        flips = bits(f"{seed} {number}", size, rate) | (hot & bits(f"{seed} {number} hot", size, 0.5))
        mask = mask ^ flips
        lengths = flips_size_triton(mask, known, block)
        known = known_after_triton(mask, known, block)
        for agent in range(AGENTS):
            flipped = np.flatnonzero(flips[agent].numpy())
            entries, after = lengths[agent].sum(0).tolist()
            assert entries + (after + 7) // 8 == plan_flips(contexts[agent], flipped).size
            contexts[agent] = reference = contexts[agent].after(flipped)
            for ours, theirs in (
                (known.states, reference.states),
                (known.weights, reference.weights),
                (known.sums, np.stack([reference.seen, reference.flips], 1)),
                (known.classes, reference.classes),
                (known.sizes, reference.sizes),
            ):
                assert (ours[agent].numpy() == theirs).all()
    again = known_again(known.states, known.sums, known.frames, layers)
    assert torch.equal(again.weights, known.weights)
    assert torch.equal(again.classes, known.classes)
    assert torch.equal(again.sizes, known.sizes)


@given(
    layers=st.lists(st.integers(1, 60), min_size=1, max_size=3).map(tuple),
    rates=st.lists(st.sampled_from([0.0, 0.02, 0.3, 0.95, 1.0]), min_size=1, max_size=3),
    block=st.sampled_from([16, 32]),
    seed=st.integers(0, 99),
)
@settings(max_examples=5, deadline=None)
def test_random_histories(layers: tuple[int, ...], rates: list[float], block: int, seed: int) -> None:
    follows(layers, rates, block, seed)


def test_masks_that_stay_empty() -> None:
    follows((60, 20), [0.0, 0.0], 16, density=0.0, often=0.0)


def test_more_blocks_than_are_joined_at_once() -> None:
    follows((5, 1_100, 20), [0.01, 0.01], 16)


def test_more_layers_than_classes() -> None:
    follows((2, 1) * 17, [0.3, 0.3], 16)


def test_whole_blocks() -> None:
    follows((4_400, 100), [0.001] * 2, 4_096)
