"""Votes and values of the messages that each receiver hears, added up.

Votes are counted before anything is divided: counts are whole numbers, so they are the same for one row or for all.
On a CPU real values, too, are added sender by sender in column order, which makes a row's result independent of the
other rows and of columns it does not listen to.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from peermask.graph.links import Links

# Shapes: A receivers, K received messages, P weights


def count_votes(links: Links, votes: Tensor, dtype: torch.dtype) -> Tensor:
    """Count the messages that are heard and keep each weight, as exact integers: [K, P] bool -> [A, P].

    Messages weighted by age count several times; only on a CPU.
    """
    if votes.device.type == "cpu":
        return count_by_rows(links, votes, dtype)
    if not links.is_paired:
        return count_in_turns(links, votes, dtype)
    return count_votes_triton(links.pairs, votes, dtype)


def count_by_rows(links: Links, votes: Tensor, dtype: torch.dtype) -> Tensor:
    """Add only the rows that are heard, a byte per vote: on a CPU several times faster than a gather
    and a sum, and far faster than a matmul."""
    bytes_ = votes.view(torch.uint8)  # [K, P]
    out = torch.zeros(len(links), votes.shape[1], dtype=dtype)  # [A, P]
    times = None if links.weights is None else iter(links.weights.astype(np.int64).tolist())
    for total, senders in zip(out, links.lists, strict=True):
        for j in senders:
            total.add_(bytes_[j], alpha=1 if times is None else next(times))
    return out


def count_in_turns(links: Links, votes: Tensor, dtype: torch.dtype) -> Tensor:
    """The same on a GPU where links are few and agents many: every receiver's first sender, then the second of each."""
    out = torch.zeros(len(links), votes.shape[1], dtype=dtype, device=votes.device)  # [A, P]
    for receivers, senders, _ in links.turns:
        out.index_add_(0, receivers, votes[senders].to(dtype))
    return out


def weighted_sum(links: Links, values: Tensor) -> Tensor:
    """Σ_j W_ij x_j with the weights of links, or 1 each: [K, P] -> [A, P]."""
    if values.device.type == "cpu":
        out = torch.zeros(len(links), values.shape[1], dtype=values.dtype)  # [A, P]
        weights = links.strengths.tolist()
        for total, senders, first in zip(out, links.lists, links.starts.tolist(), strict=False):
            for place, j in enumerate(senders, first):
                total.add_(values[j], alpha=weights[place])
        return out
    if links.is_paired:
        return product_in_full(links.matrix.to(values.dtype), values)
    return sum_in_turns(links, values)


def sum_in_turns(links: Links, values: Tensor) -> Tensor:
    """The same where links are few and agents many. A turn has each receiver once, so sums are always in one order."""
    out = torch.zeros(len(links), values.shape[1], dtype=values.dtype, device=values.device)  # [A, P]
    for receivers, senders, weights in links.turns:
        out.index_add_(0, receivers, values[senders].mul_(weights[:, None]))
    return out


def sum_of_all(weights: Tensor, values: Tensor) -> Tensor:
    """Σ_j w_j x_j: [K], [K, P] -> [1, P]."""
    if values.device.type != "cpu":
        return product_in_full(weights.to(values.dtype).unsqueeze(0), values)
    total = torch.zeros(1, values.shape[1], dtype=values.dtype)
    for weight, row in zip(weights.tolist(), values, strict=True):
        total[0].add_(row, alpha=weight)
    return total


def product_in_full(weights: Tensor, values: Tensor) -> Tensor:
    """`weights @ values` in full float32, also where the run computes gradients in TF32.

    TF32 has 10 mantissa bits: a mean of models would lose every step smaller than a thousandth of a weight.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        return weights @ values
    finally:
        torch.set_float32_matmul_precision(before)


# On a GPU, by kernels

FEW = 32  # agents that one tile holds; more are cut into tiles
_TILE_OF_FEW = (FEW, 256, 32)  # agents, columns, messages taken at a time
_TILE_OF_MANY = (64, 128, 32)


def count_votes_triton(chosen: Tensor, votes: Tensor, dtype: torch.dtype) -> Tensor:
    """Count the chosen messages that keep each weight: [A, K], [K, P] bool -> [A, P]."""
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
