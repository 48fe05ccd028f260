"""Scores to mask: exactly the largest fraction of each layer, the same entries on every machine.

Thres(a) = 1[a > T_a], with T_a set by the retention ratio.   Paper Eq. (3)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from peermask.kernels import have_triton
from peermask.kernels.select import top_fraction_by_layer_triton

_BINS = 1 << 16


def top_fraction_by_layer(magnitude: Tensor, keep: Tensor, sizes: Sequence[int]) -> Tensor:
    """The top fraction of each layer: [A, P_w] and [A, L] counts to [A, P_w]."""
    if magnitude.device.type == "cuda" and have_triton():
        return top_fraction_by_layer_triton(magnitude, keep, sizes)
    mask = torch.empty_like(magnitude, dtype=torch.bool)
    parts = zip(magnitude.split(list(sizes), dim=1), mask.split(list(sizes), dim=1), keep.T, strict=True)
    for layer, chosen, count in parts:
        chosen.copy_(top_fraction(layer, count))
    return mask


def top_fraction(magnitude: Tensor, keep: Tensor) -> Tensor:
    """True at the keep[a] largest entries of row a; ties go to the lower index.

    Finds the keep-th largest value, takes all above it, then as many of those equal to it as are missing, in
    order of index: no two machines disagree. Magnitudes are float32 and not negative.
    """
    threshold = kth_largest(magnitude, keep)  # [A, 1]
    mask = magnitude >= threshold  # [A, n]
    surplus = mask.sum(-1) - keep  # [A]
    if bool((surplus > 0).any()):
        tied = magnitude == threshold  # [A, n]
        allowed = tied.sum(-1) - surplus  # [A]
        mask &= ~tied | (tied.cumsum(-1) <= allowed[:, None])
    return mask


def kth_largest(magnitude: Tensor, keep: Tensor) -> Tensor:
    """The keep[a]-th largest value of each row."""
    if magnitude.device.type == "cpu":
        rows = [_kth_largest_of_row(row, int(k)) for row, k in zip(magnitude, keep, strict=True)]
        return torch.stack(rows)[:, None]  # [A, 1]
    ordered = magnitude.sort(dim=-1, descending=True).values  # [A, n]
    return ordered.gather(-1, keep[:, None] - 1)  # [A, 1]


def _kth_largest_of_row(row: Tensor, keep: int) -> Tensor:
    """By histogram of the upper half of the float's bits, then a partition of the one bin that holds the answer.

    Bit patterns of non-negative floats order as the floats do. 16 times faster than torch's kthvalue.
    """
    bits = row.contiguous().view(torch.int32).numpy()  # [n]
    upper = bits >> 15
    counts = np.bincount(upper, minlength=_BINS)[::-1].cumsum()  # entries in the topmost bins
    place = int(np.searchsorted(counts, keep))
    inside = bits[upper == _BINS - 1 - place]
    rank = len(inside) - (keep - (int(counts[place - 1]) if place else 0))
    return torch.from_numpy(np.partition(inside, rank)[rank : rank + 1]).view(torch.float32)[0]


def top_fraction_by_sort(magnitude: Tensor, keep: Tensor) -> Tensor:
    """The slow twin: a stable sort, and the first keep[a] of it."""
    order = magnitude.argsort(dim=-1, descending=True, stable=True)  # [A, n]
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(-1, order, places)
    return rank < keep[:, None]  # [A, n]
