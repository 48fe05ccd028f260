"""|y| of every agent and layer, and the pull towards the neighbours' masks, in two launches each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from peermask.kernels.blocks import BLOCK, block_table, first_blocks

_SUMS = 256  # of a layer's blocks, added up at a time
_LINE = 16  # entries; where layers begin at multiples of it, several are loaded at a time


@dataclass(frozen=True)
class _Tables:
    """Where layers lie, on one device."""

    blocks: Tensor  # [N, 3] layer, start, end: pieces that no layer's edge cuts
    firsts: Tensor  # [L + 1] the first block of each layer, and one past the last
    sizes: Tensor  # [L] float32
    in_lines: bool


def aggregated_magnitude_triton(
    scores: Tensor, votes: Tensor, voters: Tensor, gain: float, sizes: Sequence[int]
) -> Tensor:
    """|z| + mean|z_l| · gain · votes / voters where z is not 0: [A, P]."""
    from peermask.kernels.aggregate_triton import magnitude_kernel, sum_kernel

    tables = _tables(tuple(sizes), scores.device)
    (agents, width), count, lines = scores.shape, len(tables.blocks), tables.in_lines
    scores, votes, voters = scores.contiguous(), votes.contiguous(), voters.contiguous()
    sums = torch.empty(agents, count, device=scores.device)
    out = torch.empty_like(scores)
    grid = (count, agents)
    sum_kernel[grid](scores, tables.blocks, sums, width, count, lines, BLOCK, num_warps=8)
    magnitude_kernel[grid](
        scores, votes, voters, sums, tables.blocks, tables.firsts, tables.sizes, out, gain, width, count, lines,
        BLOCK, _SUMS, num_warps=8,
    )  # fmt: skip
    return out


def pulled_triton(
    scores: Tensor, votes: Tensor, voters: Tensor, mask: Tensor, gain: float, sizes: Sequence[int]
) -> Tensor:
    """z + gain · mean|z_l| · sign(z) · (votes / voters − mask), and z itself where there are no voters: [A, P]."""
    from peermask.kernels.aggregate_triton import pull_kernel, sum_kernel

    tables = _tables(tuple(sizes), scores.device)
    (agents, width), count, lines = scores.shape, len(tables.blocks), tables.in_lines
    scores, votes, voters, mask = scores.contiguous(), votes.contiguous(), voters.contiguous(), mask.contiguous()
    sums = torch.empty(agents, count, device=scores.device)
    out = torch.empty_like(scores)
    grid = (count, agents)
    sum_kernel[grid](scores, tables.blocks, sums, width, count, lines, BLOCK, num_warps=8)
    pull_kernel[grid](
        scores, votes, voters, mask, sums, tables.blocks, tables.firsts, tables.sizes, out, gain, width, count, lines,
        BLOCK, _SUMS, num_warps=8,
    )  # fmt: skip
    return out


@lru_cache(maxsize=16)
def _tables(sizes: tuple[int, ...], device: torch.device) -> _Tables:
    return _Tables(
        block_table(sizes, device),
        first_blocks(sizes, device),
        torch.tensor(sizes, dtype=torch.float32, device=device),
        all(size % _LINE == 0 for size in sizes),
    )
