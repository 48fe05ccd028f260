"""Layers of a flat vector cut into blocks, so that one launch covers all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

BLOCK = 4096
SUMS = 256  # of a layer's blocks, added up at a time
LINE = 16  # entries


def spans_of(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Start and end of each layer."""
    ends = list(accumulate(sizes))
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def in_lines(sizes: Sequence[int], *strides: int) -> bool:
    """Whether every layer, and every row, begins with a line: see blocks_triton.py."""
    return all(count % LINE == 0 for count in (*sizes, *strides))


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


@dataclass(frozen=True)
class LayerTables:
    """Places of the layers, on one device, for kernels that need the mean of a layer."""

    blocks: Tensor  # [N, 3] layer, start, end
    firsts: Tensor  # [L + 1] the first block of each layer, and one past the last
    sizes: Tensor  # [L] float32
    in_lines: bool


@lru_cache(maxsize=16)
def layer_tables(sizes: tuple[int, ...], device: torch.device) -> LayerTables:
    return LayerTables(
        block_table(sizes, device),
        first_blocks(sizes, device),
        torch.tensor(sizes, dtype=torch.float32, device=device),
        in_lines(sizes),
    )


@dataclass(frozen=True)
class LeafTables:
    """Where the layers of all leaves lie, on one device."""

    blocks: tuple[Tensor, ...]  # of each leaf [N, 3] layer, start, end
    first_blocks: tuple[int, ...]  # of each leaf among those of all, and one past the last
    first_layers: tuple[int, ...]
    layers: Tensor  # [LAYERS, 4] first block, one past its last, start, size
    leaves: Tensor  # [LEAVES, 4] whether it is a mask, first layer, one past its last, size


@lru_cache(maxsize=16)
def leaf_tables(leaves: tuple[tuple[bool, tuple[int, ...]], ...], block: int, device: torch.device) -> LeafTables:
    """Make the tables of consecutive leaves, each with whether it is a mask and the sizes of its layers."""
    blocks = tuple(block_table(sizes, device, block) for _, sizes in leaves)
    first_layers = (0, *accumulate(len(sizes) for _, sizes in leaves))
    spans = [span for _, sizes in leaves for span in spans_of(sizes)]
    ends = list(accumulate(-(-(end - start) // block) for start, end in spans))
    layers = [
        (before, after, start, end - start)
        for before, after, (start, end) in zip([0, *ends[:-1]], ends, spans, strict=True)
    ]
    each = zip(leaves, first_layers[:-1], first_layers[1:], strict=True)
    described = [(is_mask, first, end, sum(sizes)) for (is_mask, sizes), first, end in each]
    return LeafTables(
        blocks,
        (0, *accumulate(len(table) for table in blocks)),
        first_layers,
        torch.tensor(layers, dtype=torch.int32, device=device),
        torch.tensor(described, dtype=torch.int32, device=device),
    )
