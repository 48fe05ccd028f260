"""What every agent's message costs, counted on a GPU without leaving it: two passes over the weights of each leaf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from peermask.kernels.blocks import BLOCK, block_table, spans_of

Leaf = tuple[bool, tuple[int, ...]]  # whether it is a mask, and the sizes of its layers

_BLOCKS_AT_ONCE = 256  # of a layer
_LAYERS_AT_ONCE = 64  # of a leaf


@dataclass(frozen=True)
class _Tables:
    """Where the layers of all leaves lie, on one device."""

    blocks: tuple[Tensor, ...]  # of each leaf [N, 3] layer, start, end
    first_blocks: tuple[int, ...]  # of each leaf among those of all, and one past the last
    first_layers: tuple[int, ...]
    layers: Tensor  # [LAYERS, 4] first block, one past its last, start, size
    leaves: Tensor  # [LEAVES, 4] whether it is a mask, first layer, one past its last, size


def count_frames_triton(
    rows: Sequence[Tensor],
    bases: Sequence[Tensor] | None,
    layers: Sequence[tuple[int, ...]],
    frame_bytes: int,
    flips: Mapping[int, Tensor] | None = None,
    block: int = BLOCK,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of every agent's message bits of ones and values, bytes of the entropy's bound, bytes of its frame, and whether
    that is a delta: [A] each.

    `rows` are its leaves [A, P], bool or float32, each with its layers; `bases` those that receivers hold; `flips` how
    long the flips of each mask leaf are by class, from `flips_size_triton`.
    """
    from peermask.kernels import gaps_triton as kernels

    device, agents, leaves = rows[0].device, len(rows[0]), len(rows)
    is_mask = [leaf.dtype == torch.bool for leaf in rows]
    tables = _tables(tuple(zip(is_mask, layers, strict=True)), block, device)
    members = [_as_integers(leaf) for leaf in rows]
    held = members if bases is None else [_as_integers(leaf) for leaf in bases]
    sets, total_layers, total_blocks = (
        1 if bases is None or all(is_mask) else 2,
        len(tables.layers),
        tables.first_blocks[-1],
    )
    width = 3 * total_layers + leaves * leaves
    counts = torch.zeros(agents, width, dtype=torch.int32, device=device)
    found = torch.empty(agents, total_blocks, sets, 3, dtype=torch.int32, device=device)
    lengths = torch.empty(agents, total_layers, sets, 2, dtype=torch.int32, device=device)
    whole = torch.empty(3, agents, dtype=torch.int64, device=device)
    entropy = torch.empty(agents, dtype=torch.float64, device=device)
    for leaf, (row, base, blocks) in enumerate(zip(members, held, tables.blocks, strict=True)):
        grid, first_layer = (len(blocks), agents), tables.first_layers[leaf]
        strides = (row.stride(0), base.stride(0))
        kernels.count_kernel[grid](
            row, base, blocks, counts, *strides, first_layer, width, not is_mask[leaf], sets, block, num_warps=8
        )
        kernels.gaps_kernel[grid](
            row, base, blocks, tables.layers, counts, found, *strides, first_layer, tables.first_blocks[leaf], width,
            total_blocks, sets, block, num_warps=8,
        )  # fmt: skip
        for other, mask in enumerate(members):
            if is_mask[other] and not is_mask[leaf] and mask.shape == row.shape:
                place = 3 * total_layers + leaf * leaves + other
                kernels.outside_kernel[grid](
                    row, mask, blocks, counts, row.stride(0), mask.stride(0), place, width, block, num_warps=8
                )
    kernels.layer_kernel[(total_layers, agents)](
        tables.layers, counts, found, lengths, total_layers, width, total_blocks, sets, _BLOCKS_AT_ONCE
    )
    by_class = lengths if not flips else _by_leaf(flips, leaves)
    kernels.frame_kernel[(agents,)](
        tables.leaves, tables.layers, counts, lengths, by_class, whole, entropy, leaves, total_layers, width,
        frame_bytes, sets, bool(flips), _LAYERS_AT_ONCE, num_warps=2,
    )  # fmt: skip
    return whole[0], entropy, whole[1], whole[2]


def _by_leaf(flips: Mapping[int, Tensor], leaves: int) -> Tensor:
    """[A, LEAVES, C, 2]; of leaves without a mask anything."""
    any_of_them = next(iter(flips.values()))
    return torch.stack([flips.get(leaf, any_of_them) for leaf in range(leaves)], 1)


def _as_integers(leaf: Tensor) -> Tensor:
    """The same bits, each row in one piece: an entry is in the set where they are not 0, so that -0.0 counts."""
    rows = leaf if leaf.stride(1) == 1 else leaf.contiguous()
    return rows.view(torch.uint8 if leaf.dtype == torch.bool else torch.int32)


@lru_cache(maxsize=16)
def _tables(leaves: tuple[Leaf, ...], block: int, device: torch.device) -> _Tables:
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
    return _Tables(
        blocks,
        (0, *accumulate(len(table) for table in blocks)),
        first_layers,
        torch.tensor(layers, dtype=torch.int32, device=device),
        torch.tensor(described, dtype=torch.int32, device=device),
    )
