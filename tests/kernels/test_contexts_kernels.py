"""The kernels that follow what receivers know, interpreted on a CPU, against the codec's own contexts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peermask.streams import stream
from peermask.wire.history import Contexts, plan_flips
from peermask.wire.receiver_state import (
    ReceiverMasks,
    first_receiver_masks,
    flips_size_triton,
    join_receiver_masks,
    receiver_masks_after_triton,
    restore_receiver_masks,
    split_rows,
)

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
    known, contexts = first_receiver_masks(mask, layers), [Contexts.begin(row.numpy(), layers) for row in mask]
    for number, rate in enumerate(rates):
        flips = bits(f"{seed} {number}", size, rate) | (hot & bits(f"{seed} {number} hot", size, 0.5))
        mask = mask ^ flips
        lengths = flips_size_triton(mask, known, block)
        known = receiver_masks_after_triton(mask, known, block)
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
    again = restore_receiver_masks(known.states, known.sums, known.frames, layers)
    assert torch.equal(again.weights, known.weights)
    assert torch.equal(again.classes, known.classes)
    assert torch.equal(again.sizes, known.sizes)


def test_rows_at_different_frames_follow_as_they_would_alone() -> None:
    """One before its first flips, one after one frame and one after three, taken apart and stacked in another order."""
    layers, size = (40, 23), 63
    alone = []
    for frames in (0, 1, 3):
        known = first_receiver_masks(bits(f"first {frames}", size, 0.4)[:1], layers)
        for number in range(frames):
            known = receiver_masks_after_triton(
                known_mask(known) ^ bits(f"{frames} {number}", size, 0.2)[:1], known, 16
            )
        alone.append(known)
    again = join_receiver_masks(split_rows(join_receiver_masks(alone))[::-1])
    assert again.frames.tolist() == [3, 1, 0]
    mask = known_mask(again) ^ torch.cat([bits("next", size, 0.3), bits("one", size, 0.3)[:1]])
    lengths, after = flips_size_triton(mask, again, 16), receiver_masks_after_triton(mask, again, 16)
    for row, known in enumerate(reversed(alone)):
        own = mask[row : row + 1]
        assert torch.equal(lengths[row : row + 1], flips_size_triton(own, known, 16))
        wanted = receiver_masks_after_triton(own, known, 16)
        for name in ("states", "weights", "sums", "frames", "classes", "sizes"):
            assert torch.equal(getattr(after, name)[row : row + 1], getattr(wanted, name)), name


def known_mask(known: ReceiverMasks) -> torch.Tensor:
    return (known.states & 1).bool()


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
