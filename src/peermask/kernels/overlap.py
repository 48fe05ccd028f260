"""Whose masks lie near: the masks of all agents compared with those they received, in two launches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from peermask.kernels.blocks import block_table

MOST = 128  # messages that one program ranks
_TILE = 32  # agents, and messages, that a program compares
_BLOCK = 2048  # columns taken by a program,
_STEP = 64  # so many at a time


def overlaps_triton(masks: Tensor, received: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Entries kept by both [A, K], and ones by layer of own [A, L] and received masks [K, L]: [A, P], [K, P] bool."""
    from peermask.kernels.overlap_triton import overlap_kernel

    masks, received = masks.contiguous(), received.contiguous()
    (agents, width), senders, layers, device = masks.shape, len(received), len(sizes), masks.device
    blocks = block_table(tuple(sizes), device, _BLOCK)
    counts = torch.zeros(agents * senders + (agents + senders) * layers, dtype=torch.int32, device=device)
    both, own, theirs = counts.split([agents * senders, agents * layers, senders * layers])
    grid = (len(blocks), -(-agents // _TILE), -(-senders // _TILE))
    overlap_kernel[grid](
        masks.view(torch.int8), received.view(torch.int8), blocks, both, own, theirs, agents, senders, width, layers,
        _TILE, _STEP, num_warps=4,
    )  # fmt: skip
    return both.view(agents, senders), own.view(agents, layers), theirs.view(senders, layers)


def believed_triton(
    masks: Tensor, received: Tensor, heard: Tensor, sizes: Sequence[int], factor: float, limit: float
) -> Tensor:
    """Which of the messages that are heard [A, K] count, for K up to `MOST`: see masks/guard.py."""
    from peermask.kernels.overlap_triton import believe_kernel

    both, own, theirs = overlaps_triton(masks, received, sizes)
    agents, senders = both.shape
    out = torch.empty(agents, senders, dtype=torch.bool, device=masks.device)
    table = _on_device(tuple(sizes), masks.device)
    places = max(16, 1 << (senders - 1).bit_length())
    believe_kernel[(agents,)](
        both, own, theirs, heard.contiguous(), table, out, factor, limit, senders, len(sizes), places, num_warps=4
    )
    return out


@lru_cache(maxsize=16)
def _on_device(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(sizes, dtype=torch.int32, device=device)
