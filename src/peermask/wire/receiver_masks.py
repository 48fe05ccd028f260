"""What receivers know of all agents' masks, on a GPU: what `wire/history.py` computes for one agent, for all at once.

Shapes: N agents, P weights, L layers, S = 256 states, C = 32 classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from peermask.kernels.blocks import BLOCK, block_table, in_lines, spans_of
from peermask.wire.history import CLASSES, FIRST, STATES

_BLOCKS_AT_ONCE = 64  # whose classes are added up
_CLASS_BLOCKS = 256  # of a class


@dataclass(frozen=True)
class ReceiverMasks:
    """One mask leaf of every agent after a frame, as its receivers know it; each may be at another frame."""

    layers: tuple[int, ...]
    states: Tensor  # [N, P] uint8
    weights: Tensor  # [N, L, S] int32: how many are in each state
    sums: Tensor  # [N, L, 2, S] int64: weights and flips of the frames before, fading
    frames: Tensor  # [N] int32: since the keyframe

    @property
    def classes(self) -> Tensor:
        """[N, L, S] uint8"""
        return self._classes[0]

    @property
    def sizes(self) -> Tensor:
        """[N, C] int32: weights of each class."""
        return self._classes[1]

    @cached_property
    def _classes(self) -> tuple[Tensor, Tensor]:
        from peermask.kernels import contexts_triton as kernels

        agents, layers, device = len(self.states), len(self.layers), self.states.device
        classes = torch.empty(agents, layers, STATES, dtype=torch.uint8, device=device)
        sizes = torch.empty(agents, CLASSES, dtype=torch.int32, device=device)
        kernels.classes_kernel[(agents,)](self.weights, self.sums, self.frames, classes, sizes, layers)
        return classes, sizes


def first_receiver_masks(mask: Tensor, layers: tuple[int, ...]) -> ReceiverMasks:
    """Return the state after keyframes; `mask` is [N, P] bool."""
    agents, device = len(mask), mask.device
    weights = torch.zeros(agents, len(layers), STATES, dtype=torch.int32, device=device)
    ones = torch.stack([mask[:, start:end].sum(1) for start, end in spans_of(layers)], 1)  # [N, L]
    weights[:, :, FIRST + 1] = ones.int()
    weights[:, :, FIRST] = torch.tensor(layers, device=device, dtype=torch.int32) - ones.int()
    sums = torch.zeros(agents, len(layers), 2, STATES, dtype=torch.int64, device=device)
    frames = torch.zeros(agents, dtype=torch.int32, device=device)
    return ReceiverMasks(layers, mask.contiguous().view(torch.uint8) + FIRST, weights, sums, frames)


def restore_receiver_masks(states: Tensor, sums: Tensor, frames: Tensor, layers: tuple[int, ...]) -> ReceiverMasks:
    """Restore the state from the tensors of a checkpoint."""
    index = STATES * torch.arange(len(states), device=states.device)[:, None] + states  # [N, P]
    counts = [
        torch.bincount(index[:, start:end].flatten(), minlength=STATES * len(states)).view(-1, STATES)
        for start, end in spans_of(layers)
    ]
    return ReceiverMasks(layers, states, torch.stack(counts, 1).int(), sums, frames.int())


def stacked(parts: Sequence[ReceiverMasks]) -> ReceiverMasks:
    """The agents of all parts, one after another."""
    each = [(part.states, part.weights, part.sums, part.frames) for part in parts]
    return ReceiverMasks(parts[0].layers, *map(torch.cat, zip(*each, strict=True)))


def split_rows(known: ReceiverMasks) -> list[ReceiverMasks]:
    """Each agent in its own memory."""
    tensors = (known.states, known.weights, known.sums, known.frames)
    rows = zip(*([row.clone() for row in tensor.split(1)] for tensor in tensors), strict=True)
    return [ReceiverMasks(known.layers, *row) for row in rows]


def flips_size_triton(mask: Tensor, known: ReceiverMasks, block: int = BLOCK) -> Tensor:
    """Entries in bytes and bits after them [N, C, 2] int32, of every class of every agent's flips."""
    from peermask.kernels import contexts_triton as kernels

    row, blocks = as_integers(mask), block_table(known.layers, mask.device, block)
    agents, count, weights, layers = len(row), len(blocks), row.shape[1], len(known.layers)
    inside = torch.empty(agents, count, CLASSES, 2, dtype=torch.int32, device=mask.device)
    flipped = torch.empty(agents, CLASSES, dtype=torch.int32, device=mask.device)
    found = torch.empty(agents, count, CLASSES, 3, dtype=torch.int32, device=mask.device)
    lengths = torch.empty(agents, CLASSES, 2, dtype=torch.int32, device=mask.device)
    lines = in_lines(known.layers, row.stride(0))
    grid, sizes = (count, agents), (row.stride(0), weights, layers, count)
    kernels.inside_kernel[grid](row, known.states, known.classes, blocks, inside, *sizes, lines, block, num_warps=8)
    kernels.before_kernel[(agents,)](inside, flipped, count, _BLOCKS_AT_ONCE)
    kernels.class_gaps_kernel[grid](
        row, known.states, known.classes, known.sizes, flipped, blocks, inside, found, *sizes, lines, block, num_warps=8
    )
    kernels.class_kernel[(CLASSES, agents)](known.sizes, flipped, found, lengths, count, _CLASS_BLOCKS)
    return lengths


def receiver_masks_after_triton(mask: Tensor, known: ReceiverMasks, block: int = BLOCK) -> ReceiverMasks:
    """What is known once `mask` [N, P] was sent."""
    from peermask.kernels import contexts_triton as kernels

    row, blocks = as_integers(mask), block_table(known.layers, mask.device, block)
    agents, layers = len(row), len(known.layers)
    states, sums, frames = (torch.empty_like(each) for each in (known.states, known.sums, known.frames))
    flips, weights = torch.zeros(2, agents, layers, STATES, dtype=torch.int32, device=mask.device)
    kernels.states_kernel[(len(blocks), agents)](
        row, known.states, known.frames, states, blocks, flips, row.stride(0), row.shape[1], layers,
        in_lines(known.layers, row.stride(0)), block, num_warps=8,
    )  # fmt: skip
    kernels.sums_kernel[(agents * layers,)](
        known.weights, flips, known.sums, known.frames, weights, sums, frames, layers
    )
    return ReceiverMasks(known.layers, states, weights, sums, frames)


def as_integers(leaf: Tensor) -> Tensor:
    """The same bits, each row in one piece: an entry is in the set where they are not 0, so that -0.0 counts."""
    rows = leaf if leaf.stride(1) == 1 else leaf.contiguous()
    return rows.view(torch.uint8 if leaf.dtype == torch.bool else torch.int32)
