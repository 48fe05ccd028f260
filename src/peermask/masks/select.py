"""Scores to mask: exactly the largest fraction of each layer, the same entries on every machine.

Thres(a) = 1[a > T_a], with T_a set by the retention ratio.   Paper Eq. (3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peermask.kernels import by_kernels
from peermask.kernels.blocks import BLOCK, block_table, in_lines, spans_of
from peermask.wire.sets import positions

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
    """True at the keep[a] largest entries of row a, on a CPU; ties go to the lower index."""
    mask = torch.empty_like(magnitude, dtype=torch.bool) if out is None else out  # [A, n]
    for row, count, chosen in zip(magnitude, keep.tolist(), mask, strict=True):
        _top_of_row(row.contiguous().numpy(), count, chosen.numpy())
    return mask


def _top_of_row(values: NDArray[np.float32], keep: int, mask: NDArray[np.bool_]) -> None:
    """Select all that reach the keep-th largest value; too many equal ones are dropped from the end."""
    threshold = _kth_largest(values, keep)
    np.greater_equal(values, threshold, out=mask)
    surplus = np.count_nonzero(mask) - keep
    if surplus:
        mask[np.flatnonzero(values == threshold)[-surplus:]] = False


def _kth_largest(values: NDArray[np.float32], keep: int) -> np.float32:
    """Find it by a sample that brackets the answer, then a partition of the few entries inside the bracket.

    Should the bracket miss, the whole row is partitioned: the result is exact in any case. Far faster than a sort
    or torch's kthvalue on a large layer.
    """
    low, high = _bracket(values, keep)
    reached: NDArray[np.bool_] = values >= low  # [n]
    above = int(np.count_nonzero(reached))
    reached &= values <= high
    inside = values[positions(reached)]  # few of many: faster than by the mask itself
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
    drawn = values[_places(size)]
    share = keep / size
    place = share * len(drawn)
    spread = _SIGMAS * np.sqrt(len(drawn) * share * (1 - share)) + 2
    first, last = int(place - spread), int(place + spread)  # ranks, the largest being 0
    has_low, has_high = last < len(drawn), place >= spread
    ranks = [len(drawn) - 1 - rank for rank, is_there in ((last, has_low), (first, has_high)) if is_there]
    ranked = np.partition(drawn, ranks)
    return (float(ranked[ranks[0]]) if has_low else -np.inf, float(ranked[ranks[-1]]) if has_high else np.inf)


@lru_cache(maxsize=64)
def _places(size: int) -> NDArray[np.int64]:  # [_SAMPLE]
    """One of each of _SAMPLE stretches, not at even distances: those meet the same place of every filter."""
    n, stride = np.arange(_SAMPLE), 40503  # as in kernels/select_triton.py
    return n * size // _SAMPLE + ((n * stride & 0xFFFF) * (size // _SAMPLE) >> 16)


def top_fraction_by_sort(magnitude: Tensor, keep: Tensor) -> Tensor:
    """The slow reference: a stable sort, and the first keep[a] of it."""
    order = magnitude.argsort(dim=-1, descending=True, stable=True)  # [A, n]
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(-1, order, places)
    return rank < keep[:, None]  # [A, n]


# On a GPU, by kernels

_SAMPLE_ON_GPU = 16384  # measured best on an H200, as are the next and numbers of warps
_PIECE = 1024  # entries that are gathered at once
_HELD = 32768  # that fit into the registers of a program, and are searched without reading them again
_SEARCH = 1024  # that are read at once where there are more
_COARSE = 11  # bits of a float that a bracket's ends leave open: 12 of the mantissa are kept


@dataclass(frozen=True)
class _Tables:
    """Places of the layers, on one device."""

    blocks: Tensor  # [N, 3] layer, start, end: of BLOCK entries, and no layer's edge cuts one
    pieces: Tensor  # the same of _PIECE entries
    spans: Tensor  # [L, 2] start, end
    rooms: Tensor  # [L, 2] first place and size of the room for what lies in a layer's bracket
    room: int
    in_lines: bool


def top_fraction_by_layer_triton(magnitude: Tensor, keep: Tensor, sizes: Sequence[int]) -> Tensor:
    """True at the keep[a, l] largest entries, one at least, of layer l of row a; ties to the lower index.

    [A, P], [A, L] -> [A, P]. Four launches: on its own this is bound by how fast they follow each other.
    """
    from peermask.kernels import select_triton as kernels

    agents, layers = keep.shape
    device = magnitude.device
    tables = _tables(tuple(sizes), device)
    keep = keep.contiguous()
    magnitude = magnitude if magnitude.stride(1) == 1 else magnitude.contiguous()
    # Each row where a kernel compiled for aligned memory can take it.
    low, high, threshold, cut = torch.empty(4, -(-agents * layers // 4) * 4, dtype=torch.int32, device=device)
    counter = torch.empty(agents, layers, dtype=torch.int64, device=device)
    inside = torch.empty(agents, tables.room, device=device)
    place = torch.empty(agents, tables.room, dtype=torch.int32, device=device)
    mask = torch.empty(magnitude.shape, dtype=torch.bool, device=device)
    stride, width = magnitude.stride(0), magnitude.shape[1]
    each_row = (layers, agents)
    kernels.bracket_kernel[each_row](
        magnitude, tables.spans, keep, low, high, counter, stride, layers, _SIGMAS, _SAMPLE_ON_GPU, _COARSE,
        num_warps=16,
    )  # fmt: skip
    kernels.gather_kernel[(len(tables.pieces), agents)](
        magnitude, tables.pieces, low, high, counter, inside, place, tables.rooms, stride, tables.room, layers,
        tables.in_lines, _PIECE, num_warps=4,
    )  # fmt: skip
    kernels.threshold_kernel[each_row](
        magnitude, inside, place, tables.spans, tables.rooms, keep, low, high, counter, threshold, cut,
        stride, tables.room, layers, _SEARCH, _HELD, num_warps=16,
    )  # fmt: skip
    kernels.mask_kernel[(len(tables.blocks), agents)](
        magnitude, tables.blocks, threshold, cut, mask.view(torch.uint8), stride, width, layers, tables.in_lines, BLOCK,
        num_warps=8,
    )  # fmt: skip
    return mask


@lru_cache(maxsize=16)
def _tables(sizes: tuple[int, ...], device: torch.device) -> _Tables:
    spans = spans_of(sizes)
    room_sizes = [min(size, size // 12 + 4 * _SAMPLE_ON_GPU) for size in sizes]
    firsts = [0, *accumulate(room_sizes)]
    return _Tables(
        block_table(sizes, device),
        block_table(sizes, device, _PIECE),
        torch.tensor(spans, dtype=torch.int32, device=device),
        torch.tensor(list(zip(firsts[:-1], room_sizes, strict=True)), dtype=torch.int32, device=device),
        firsts[-1],
        in_lines(sizes),
    )
