"""Scores to mask: exactly the largest fraction of each layer, the same entries on every machine.

Thres(a) = 1[a > T_a], with T_a set by the retention ratio.   Paper Eq. (3)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peermask.kernels import by_kernels
from peermask.kernels.select import top_fraction_by_layer_triton

_SAMPLE = 8192  # entries of a layer that are ranked to bracket the threshold
_SIGMAS = 5.0  # half the bracket's width, in standard deviations of the sample's rank


def top_fraction_by_layer(magnitude: Tensor, keep: Tensor, sizes: Sequence[int]) -> Tensor:
    """The top fraction of each layer: [A, P_w] and [A, L] counts to [A, P_w]."""
    if by_kernels(magnitude):
        return top_fraction_by_layer_triton(magnitude, keep, sizes)
    mask = torch.empty_like(magnitude, dtype=torch.bool)
    parts = zip(magnitude.split(list(sizes), dim=1), mask.split(list(sizes), dim=1), keep.T, strict=True)
    for layer, chosen, count in parts:
        top_fraction(layer, count, chosen)
    return mask


def top_fraction(magnitude: Tensor, keep: Tensor, out: Tensor | None = None) -> Tensor:
    """True at the keep[a] largest entries of row a, which are float32 and not negative; ties go to the lower index."""
    mask = torch.empty_like(magnitude, dtype=torch.bool) if out is None else out  # [A, n]
    if magnitude.device.type != "cpu":
        return mask.copy_(top_fraction_by_sort(magnitude, keep))
    for row, count, chosen in zip(magnitude, keep.tolist(), mask, strict=True):
        _top_of_row(row.contiguous().numpy(), count, chosen.numpy())
    return mask


def _top_of_row(values: NDArray[np.float32], keep: int, mask: NDArray[np.bool_]) -> None:
    """All that reach the keep-th largest value; of those equal to it, the last ones go if they are too many."""
    threshold = _kth_largest(values, keep)
    np.greater_equal(values, threshold, out=mask)
    surplus = np.count_nonzero(mask) - keep
    if surplus:
        mask[np.flatnonzero(values == threshold)[-surplus:]] = False


def _kth_largest(values: NDArray[np.float32], keep: int) -> np.float32:
    """By a sample that brackets the answer, then a partition of the few entries inside the bracket.

    Should the bracket miss, the whole row is partitioned: the result is exact in any case. Far faster than a sort
    or torch's kthvalue on a large layer.
    """
    low, high = _bracket(values, keep)
    reached: NDArray[np.bool_] = values >= low  # [n]
    above = int(np.count_nonzero(reached))
    reached &= values <= high
    inside = values[np.flatnonzero(reached)]  # few of many: faster than by the mask itself
    above -= len(inside)
    if not above < keep <= above + len(inside):
        above, inside = 0, values
    rank = len(inside) - (keep - above)
    answer: np.float32 = np.partition(inside, rank)[rank]
    return answer


def _bracket(values: NDArray[np.float32], keep: int) -> tuple[float, float]:
    """Two values between which the keep-th largest lies, but for one case in a million."""
    size = len(values)
    if size <= 4 * _SAMPLE:
        return -np.inf, np.inf
    drawn = values[:: size // _SAMPLE]
    share = keep / size
    place = share * len(drawn)
    spread = _SIGMAS * np.sqrt(len(drawn) * share * (1 - share)) + 2
    first, last = int(place - spread), int(place + spread)  # ranks, the largest being 0
    has_low, has_high = last < len(drawn), place >= spread
    ranks = [len(drawn) - 1 - rank for rank, is_there in ((last, has_low), (first, has_high)) if is_there]
    ranked = np.partition(drawn, ranks)
    return (
        float(ranked[ranks[0]]) if has_low else -np.inf,
        float(ranked[ranks[-1]]) if has_high else np.inf,
    )


def top_fraction_by_sort(magnitude: Tensor, keep: Tensor) -> Tensor:
    """The slow reference: a stable sort, and the first keep[a] of it."""
    order = magnitude.argsort(dim=-1, descending=True, stable=True)  # [A, n]
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(-1, order, places)
    return rank < keep[:, None]  # [A, n]
