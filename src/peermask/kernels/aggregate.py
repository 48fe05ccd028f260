"""|y| of every agent and layer in three launches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from peermask.kernels.blocks import BLOCK, block_table, first_blocks


def aggregated_magnitude_triton(
    scores: Tensor, votes: Tensor, voters: Tensor, gain: float, sizes: Sequence[int]
) -> Tensor:
    """|z| + mean|z_l| · gain · votes / voters where z is not 0: [A, P]."""
    from peermask.kernels.aggregate_triton import magnitude_kernel, mean_kernel, sum_kernel

    key = (tuple(sizes), scores.device)
    blocks = block_table(*key)
    agents, width, layers = len(scores), scores.shape[1], len(sizes)
    scores, votes = scores.contiguous(), votes.contiguous()
    sums = torch.empty(agents, len(blocks), device=scores.device)
    mean = torch.empty(agents, layers, device=scores.device)
    out = torch.empty_like(scores)
    each_block, each_row = (len(blocks), agents), (layers, agents)
    sum_kernel[each_block](scores, blocks, sums, width, len(blocks), BLOCK, num_warps=8)
    mean_kernel[each_row](sums, first_blocks(*key), _sizes(*key), mean, len(blocks), layers, 256)
    magnitude_kernel[each_block](
        scores, votes, voters.to(torch.int32), mean, blocks, out, gain, width, layers, BLOCK, num_warps=8
    )
    return out


@lru_cache(maxsize=16)
def _sizes(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(sizes, dtype=torch.float32, device=device)
