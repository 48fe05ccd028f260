"""What a gap code of every agent's mask needs to know, counted on a GPU without leaving it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peermask.kernels.blocks import BLOCK, block_table, layer_starts


def count_members_triton(members: Tensor, sizes: Sequence[int]) -> Tensor:
    """Members in each layer of each row: [A, P] bool -> [A, L] int64."""
    from peermask.kernels.gaps_triton import count_kernel

    blocks = block_table(tuple(sizes), members.device)
    counts = torch.zeros(len(members), len(sizes), dtype=torch.int32, device=members.device)
    grid = (len(blocks), len(members))
    count_kernel[grid](members.view(torch.uint8), blocks, counts, members.shape[1], len(sizes), BLOCK, num_warps=8)
    return counts.long()


def high_parts_triton(members: Tensor, invert: Tensor, k: Tensor, sizes: Sequence[int]) -> Tensor:
    """Σ (gap >> k) over members, or over the others where `invert` is set, by layer: [A, L] int64."""
    from peermask.kernels.gaps_triton import high_kernel, last_kernel

    key = (tuple(sizes), members.device)
    blocks = block_table(*key)
    agents, width, layers = len(members), members.shape[1], len(sizes)
    last = torch.empty(agents, len(blocks), dtype=torch.int32, device=members.device)
    grid = (len(blocks), agents)
    rows, turned = members.view(torch.uint8), invert.contiguous().view(torch.uint8)
    last_kernel[grid](rows, blocks, turned, last, width, layers, len(blocks), BLOCK, num_warps=8)
    # Positions grow from layer to layer, so what an earlier layer left never passes a layer's own start.
    before = torch.nn.functional.pad(last.cummax(1).values[:, :-1], (1, 0), value=-1)
    before = torch.maximum(before, layer_starts(*key) - 1)
    high = torch.zeros(agents, layers, dtype=torch.int32, device=members.device)
    shifts = k.to(torch.int32).contiguous()
    high_kernel[grid](rows, blocks, turned, shifts, before, high, width, layers, len(blocks), BLOCK, num_warps=8)
    return high.long()
