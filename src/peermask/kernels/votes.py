"""Votes of every agent's neighbours in one launch."""

from __future__ import annotations

import torch
from torch import Tensor

FEW = 32  # agents that one tile holds; more are cut into tiles
_TILE_OF_FEW = (FEW, 256, 32)  # agents, columns, messages taken at a time
_TILE_OF_MANY = (64, 128, 32)


def count_votes_triton(chosen: Tensor, votes: Tensor, dtype: torch.dtype) -> Tensor:
    """How many of the chosen messages keep each weight: [A, K], [K, P] bool -> [A, P]."""
    from peermask.kernels.votes_triton import votes_kernel

    votes = votes if votes.stride(1) == 1 else votes.contiguous()
    agents, senders, width, stride = *chosen.shape, votes.shape[1], votes.stride(0)
    out = torch.empty(agents, width, dtype=dtype, device=votes.device)
    # Two bytes are one number where they can be, which halves the work.
    pairs = dtype == torch.uint8 and not (width % 2 or stride % 2 or votes.data_ptr() % 2)
    if pairs:
        width, stride = width // 2, stride // 2
    tile, warps, stages = (_TILE_OF_FEW, 8, 2) if agents <= FEW else (_TILE_OF_MANY, 4, 3)
    grid = (-(-agents // tile[0]) * -(-width // tile[1]),)
    votes_kernel[grid](
        chosen.contiguous(), votes, out, agents, senders, width, stride, pairs, *tile,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out
