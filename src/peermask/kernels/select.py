"""The top fraction of every layer of every agent in a handful of launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from peermask.kernels.blocks import BLOCK, block_table, spans_of

_SAMPLE = 8192  # entries of a layer that are sorted to bracket the threshold
_SIGMAS = 5.0  # half the bracket's width, in standard deviations of the sample's rank


@dataclass(frozen=True)
class _Tables:
    """Where layers lie, on one device."""

    blocks: Tensor  # [N, 3] layer, start, end: pieces that no layer's edge cuts
    spans: Tensor  # [L, 2] start, end
    rooms: Tensor  # [L, 2] first place and size of the room for what lies in a layer's bracket
    sample: Tensor  # [L * _SAMPLE] positions
    sizes: Tensor  # [L]
    room: int


def top_fraction_by_layer_triton(magnitude: Tensor, keep: Tensor, sizes: Sequence[int]) -> Tensor:
    """True at the keep[a, l] largest entries of layer l of row a; ties to the lower index. [A, P], [A, L] -> [A, P]"""
    from peermask.kernels.select_triton import gather_kernel, mask_kernel, threshold_kernel, tie_kernel

    agents, layers = keep.shape
    tables = _tables(tuple(sizes), magnitude.device)
    low, high = _brackets(magnitude, keep, tables)  # [A, L]
    counters = torch.zeros(2, agents, layers, dtype=torch.int32, device=magnitude.device)
    inside = torch.empty(agents, tables.room, device=magnitude.device)
    rank = keep.to(torch.int32).contiguous()
    threshold, left, excess = (torch.empty_like(rank) for _ in range(3))
    stride, width = magnitude.stride(0), magnitude.shape[1]
    each_block, each_row = (len(tables.blocks), agents), (layers, agents)
    gather_kernel[each_block](
        magnitude, tables.blocks, low, high, counters[0], counters[1], inside, tables.rooms, stride, tables.room,
        layers, BLOCK, num_warps=8,
    )  # fmt: skip
    threshold_kernel[each_row](
        magnitude, inside, tables.spans, tables.rooms, rank, counters[0], counters[1], threshold, left, excess,
        stride, tables.room, layers, BLOCK, num_warps=16,
    )  # fmt: skip
    mask = torch.empty(magnitude.shape, dtype=torch.uint8, device=magnitude.device)
    mask_kernel[each_block](magnitude, tables.blocks, threshold, mask, stride, width, layers, BLOCK, num_warps=8)
    tie_kernel[each_row](
        magnitude, tables.spans, threshold, left, excess, mask, stride, width, layers, BLOCK, num_warps=8
    )
    return mask.view(torch.bool)


def _brackets(magnitude: Tensor, keep: Tensor, tables: _Tables) -> tuple[Tensor, Tensor]:
    """Values between which the threshold of each layer lies; small layers are taken whole."""
    agents, layers = keep.shape
    drawn = magnitude[:, tables.sample].view(agents, layers, _SAMPLE).sort(dim=-1, descending=True).values
    share = keep / tables.sizes  # [A, L]
    spread = _SIGMAS * (_SAMPLE * share * (1 - share)).sqrt() + 2
    first = (share * _SAMPLE - spread).floor().long()
    last = (share * _SAMPLE + spread).ceil().long()
    whole = tables.sizes <= _SAMPLE
    high = drawn.gather(-1, first.clamp(0, _SAMPLE - 1)[..., None])[..., 0]
    low = drawn.gather(-1, last.clamp(0, _SAMPLE - 1)[..., None])[..., 0]
    high = torch.where(whole | (first < 0), torch.inf, high)
    low = torch.where(whole | (last >= _SAMPLE), 0.0, low)
    return low.contiguous(), high.contiguous()


@lru_cache(maxsize=16)
def _tables(sizes: tuple[int, ...], device: torch.device) -> _Tables:
    spans = spans_of(sizes)
    room_sizes = [min(size, size // 12 + 4 * _SAMPLE) for size in sizes]
    firsts = [0, *accumulate(room_sizes)]
    step = torch.arange(_SAMPLE, dtype=torch.int64)
    sample = torch.cat([start + step * (end - start) // _SAMPLE for start, end in spans])
    return _Tables(
        block_table(sizes, device),
        torch.tensor(spans, dtype=torch.int32, device=device),
        torch.tensor(list(zip(firsts[:-1], room_sizes, strict=True)), dtype=torch.int32, device=device),
        sample.to(device),
        torch.tensor(sizes, device=device),
        firsts[-1],
    )
