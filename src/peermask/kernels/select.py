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
    from peermask.kernels import select_triton as kernels

    agents, layers = keep.shape
    tables = _tables(tuple(sizes), magnitude.device)
    rank = keep.to(torch.int32).contiguous()
    drawn = magnitude[:, tables.sample].view(agents, layers, _SAMPLE).sort(dim=-1, descending=True).values
    low, high = torch.empty_like(keep, dtype=torch.float32), torch.empty_like(keep, dtype=torch.float32)
    kernels.bracket_kernel[(agents * layers,)](
        drawn, rank, tables.sizes, low, high, layers, _SIGMAS, _SAMPLE, num_warps=1
    )
    counters = torch.zeros(2, agents, layers, dtype=torch.int32, device=magnitude.device)
    inside = torch.empty(agents, tables.room, device=magnitude.device)
    threshold, left, excess = (torch.empty_like(rank) for _ in range(3))
    stride, width = magnitude.stride(0), magnitude.shape[1]
    each_block, each_row = (len(tables.blocks), agents), (layers, agents)
    kernels.gather_kernel[each_block](
        magnitude, tables.blocks, low, high, counters[0], counters[1], inside, tables.rooms, stride, tables.room,
        layers, BLOCK, num_warps=8,
    )  # fmt: skip
    kernels.threshold_kernel[each_row](
        magnitude, inside, tables.spans, tables.rooms, rank, counters[0], counters[1], threshold, left, excess,
        stride, tables.room, layers, BLOCK, num_warps=16,
    )  # fmt: skip
    mask = torch.empty(magnitude.shape, dtype=torch.uint8, device=magnitude.device)
    kernels.mask_kernel[each_block](
        magnitude, tables.blocks, threshold, mask, stride, width, layers, BLOCK, num_warps=8
    )
    kernels.tie_kernel[each_row](
        magnitude, tables.spans, threshold, left, excess, mask, stride, width, layers, BLOCK, num_warps=8
    )
    return mask.view(torch.bool)


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
