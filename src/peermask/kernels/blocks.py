"""Layers of a flat vector cut into blocks, so that one launch covers all of them."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

BLOCK = 4096


def spans_of(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Start and end of each layer."""
    ends = list(accumulate(sizes))
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]


@lru_cache(maxsize=16)
def block_table(sizes: tuple[int, ...], device: torch.device, block: int = BLOCK) -> Tensor:
    """[N, 3] layer, start, end: pieces of at most `block` entries that no layer's edge cuts."""
    rows = [
        (layer, at, min(at + block, end))
        for layer, (start, end) in enumerate(spans_of(sizes))
        for at in range(start, end, block)
    ]
    return torch.tensor(rows, dtype=torch.int32, device=device)


@lru_cache(maxsize=16)
def first_blocks(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """[L + 1] the first block of each layer, and one past the last."""
    counts = [-(-size // BLOCK) for size in sizes]
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device)
