"""How much the masks of all agents have in common with those they received, in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peermask.kernels.blocks import block_table

_TILE = 32  # agents, and messages, that a program compares
_BLOCK = 1024  # columns taken by a program


def overlaps_triton(masks: Tensor, received: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Entries kept by both, [A, K], and ones of every received mask by layer, [K, L]: [A, P], [K, P] bool."""
    from peermask.kernels.overlap_triton import overlap_kernel

    masks, received = masks.contiguous(), received.contiguous()
    (agents, width), senders, device = masks.shape, len(received), masks.device
    blocks = block_table(tuple(sizes), device, _BLOCK)
    both = torch.zeros(agents, senders, dtype=torch.int32, device=device)
    ones = torch.zeros(senders, len(sizes), dtype=torch.int32, device=device)
    grid = (len(blocks), -(-agents // _TILE), -(-senders // _TILE))
    overlap_kernel[grid](
        masks, received, blocks, both, ones, agents, senders, width, len(sizes), _TILE, _BLOCK, num_warps=4
    )
    return both, ones
