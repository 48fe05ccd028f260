"""The top fraction of every layer of every agent in a handful of launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from peermask.kernels.blocks import BLOCK, block_table, spans_of

_SAMPLE = 8192  # entries of a layer that are ranked to bracket the threshold
_SIGMAS = 5.0  # half the bracket's width, in standard deviations of the sample's rank
_PIECE = 1024  # entries that are gathered or searched at once; measured best on an H200, as are numbers of warps
_COARSE = 11  # bits of a float that a bracket's ends leave open: 12 of the mantissa are kept


@dataclass(frozen=True)
class _Tables:
    """Where layers lie, on one device."""

    blocks: Tensor  # [N, 3] layer, start, end: of BLOCK entries, and no layer's edge cuts one
    pieces: Tensor  # the same of _PIECE entries
    spans: Tensor  # [L, 2] start, end
    rooms: Tensor  # [L, 2] first place and size of the room for what lies in a layer's bracket
    room: int


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
        magnitude, tables.spans, keep, low, high, counter, stride, layers, _SIGMAS, _SAMPLE, _COARSE, num_warps=16
    )
    kernels.gather_kernel[(len(tables.pieces), agents)](
        magnitude, tables.pieces, low, high, counter, inside, place, tables.rooms, stride, tables.room, layers, _PIECE,
        num_warps=4,
    )  # fmt: skip
    kernels.threshold_kernel[each_row](
        magnitude, inside, place, tables.spans, tables.rooms, keep, low, high, counter, threshold, cut,
        stride, tables.room, layers, _PIECE, num_warps=32,
    )  # fmt: skip
    kernels.mask_kernel[(len(tables.blocks), agents)](
        magnitude, tables.blocks, threshold, cut, mask.view(torch.uint8), stride, width, layers, BLOCK, num_warps=8
    )
    return mask


@lru_cache(maxsize=16)
def _tables(sizes: tuple[int, ...], device: torch.device) -> _Tables:
    spans = spans_of(sizes)
    room_sizes = [min(size, size // 12 + 4 * _SAMPLE) for size in sizes]
    firsts = [0, *accumulate(room_sizes)]
    return _Tables(
        block_table(sizes, device),
        block_table(sizes, device, _PIECE),
        torch.tensor(spans, dtype=torch.int32, device=device),
        torch.tensor(list(zip(firsts[:-1], room_sizes, strict=True)), dtype=torch.int32, device=device),
        firsts[-1],
    )
