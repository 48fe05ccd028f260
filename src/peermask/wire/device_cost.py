"""The cost of every agent's payload at once, with torch alone: nothing leaves the device inside a round.

Same rules as `sets.plan_layer`, same numbers to the byte. Layers are handled together where they can be: on a GPU
much of the time goes into starting kernels. Shapes: A agents, P weights, L layers, B blocks of all layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from peermask.wire.blocks import BLOCK, RANK_WIDTHS, STEP_PARAMETERS
from peermask.wire.cost import FRAME_BYTES
from peermask.wire.cursor import MAX_VARINT_BYTES
from peermask.wire.sets import BLOCKS_FROM, GAPS_UP_TO, slices

NEVER = 2**62  # bits of a code that is not tried
MAX_SHIFT = 31
CHUNK = 256


@dataclass(frozen=True)
class LayerMap:
    """Where layers lie, as tensors of one device."""

    sizes: Tensor  # [L]
    counts: Tensor  # [L] blocks in each layer
    index: Tensor  # [P] int32
    start: Tensor  # [P] int32, the first position of each weight's layer
    of_weight: Tensor  # [P] its layer
    of_block: Tensor  # [B] its layer
    rank_widths: Tensor  # [65]


@cache
def layer_map(layers: tuple[int, ...], device: torch.device) -> LayerMap:
    """Copied to each device once."""
    sizes = torch.tensor(layers)
    counts = (sizes + BLOCK - 1) // BLOCK
    numbers = torch.arange(len(layers))
    start = (sizes.cumsum(0) - sizes).repeat_interleave(sizes).to(torch.int32)
    return LayerMap(
        sizes.to(device),
        counts.to(device),
        torch.arange(sum(layers), dtype=torch.int32, device=device),
        start.to(device),
        numbers.repeat_interleave(sizes).to(device),
        numbers.repeat_interleave(counts).to(device),
        torch.as_tensor(RANK_WIDTHS, device=device),
    )


def payload_frame_size_torch(
    payload: Mapping[str, Tensor], base: Mapping[str, Tensor] | None, layers: Sequence[int]
) -> Tensor:
    """`frame_size(...).total` of each agent's payload [A, ...]."""
    masks = [leaf for leaf in payload.values() if leaf.dtype == torch.bool]
    sizes = [
        leaf_size_torch(leaf, None if base is None else base[name], layers, masks) for name, leaf in payload.items()
    ]
    return FRAME_BYTES + torch.stack(sizes).sum(0)  # [A]


def leaf_size_torch(leaf: Tensor, base: Tensor | None, layers: Sequence[int], masks: Sequence[Tensor]) -> Tensor:
    """Bytes of `plan_leaf(...)` of each row, its kind byte included."""
    rows = leaf.flatten(1)  # [A, P]
    cut = layers if rows.shape[1] == sum(layers) else (rows.shape[1],)
    if leaf.dtype == torch.bool:
        return 1 + smaller_set(rows, base, cut)
    # As the encoder does: -0.0 counts as a value.
    where, held = rows.view(torch.int32) != 0, None if base is None else base.flatten(1).view(torch.int32) != 0
    dense = torch.full((len(rows),), 4 * rows.shape[1], device=rows.device)
    ways = [dense, smaller_set(where, held, cut) + 4 * where.sum(1)]
    for mask in masks:
        if mask.shape == rows.shape:
            outside = (where & ~mask).any(1)
            ways.append(torch.where(outside, NEVER, 1 + 4 * mask.sum(1)))
    return 1 + torch.stack(ways).amin(0)  # [A]


def smaller_set(members: Tensor, base: Tensor | None, layers: Sequence[int]) -> Tensor:
    """The smaller of keyframe and delta of each row."""
    keyframe = set_size_torch(members, layers)  # [A]
    return keyframe if base is None else torch.minimum(keyframe, set_size_torch(members ^ base, layers))


def delta_size_torch(flips: Tensor, layers: Sequence[int]) -> Tensor:
    """Bytes of each agent's frame with one mask leaf sent as a delta; `flips` [A, P] bool."""
    return FRAME_BYTES + 1 + set_size_torch(flips, layers)  # [A]


def set_size_torch(members: Tensor, layers: Sequence[int]) -> Tensor:
    """Bytes of `sets.encode_set` of each row."""
    where = layer_map(tuple(layers), members.device)
    ones = torch.stack([members[:, part].sum(1) for part in slices(layers)], 1)  # [A, L] int64
    minority = torch.minimum(ones, where.sizes - ones)
    gaps = torch.where(minority * GAPS_UP_TO <= where.sizes, gap_bits(members, ones, minority, layers, where), NEVER)
    blocks = torch.where(minority * BLOCKS_FROM > where.sizes, block_bits(members, ones, layers, where), NEVER)
    raw = where.sizes.expand_as(ones)
    bits = torch.stack([gaps, blocks, raw])  # [3, A, L]
    table = torch.stack([1 + varint_bytes(minority), torch.full_like(ones, 2), torch.ones_like(ones)])
    best = (bits + 8 * table).argmin(0, keepdim=True)  # [1, A, L]
    empty = minority == 0
    table = torch.where(empty, 1, table.gather(0, best)[0])
    bits = torch.where(empty, 0, bits.gather(0, best)[0])
    return table.sum(1) + (bits.sum(1) + 7) // 8  # [A]


def gap_bits(members: Tensor, ones: Tensor, minority: Tensor, layers: Sequence[int], where: LayerMap) -> Tensor:
    """`gaps.gap_bits` of each agent's layers, of their minorities."""
    k = rice_parameter(minority, where.sizes)  # [A, L]
    chosen = members ^ (2 * ones > where.sizes)[:, where.of_weight]  # [A, P]
    previous = torch.maximum(last_before(chosen, where.index), where.start - 1)  # [A, P]
    high = (where.index - previous - 1) >> k.to(torch.int32)[:, where.of_weight]
    high = high * chosen  # [A, P]
    return torch.stack([high[:, part].sum(1) for part in slices(layers)], 1) + minority * (1 + k)  # [A, L]


def last_before(chosen: Tensor, index: Tensor) -> Tensor:
    """The nearest chosen position below each, -1 where there is none.

    A running maximum in two levels, inside chunks and then over chunks: a GPU scans many short rows side by
    side, but one long row on one multiprocessor.
    """
    size = index.numel()
    chunks = -(-size // CHUNK)
    own = pad(torch.where(chosen, index, -1), (1, chunks * CHUNK - size - 1), value=-1)  # shifted by one
    own = own.view(-1, chunks, CHUNK).cummax(2).values  # [A, chunks, CHUNK]
    carry = own[:, :, -1].cummax(1).values  # [A, chunks]
    carry = pad(carry[:, :-1], (1, 0), value=-1)
    return torch.maximum(own, carry[:, :, None]).view(-1, chunks * CHUNK)[:, :size]  # [A, P]


def rice_parameter(count: Tensor, size: Tensor) -> Tensor:
    """`gaps.rice_parameter`; floor(log2) as a count of the powers of two that fit."""
    ratio = 77 * (2 * size - count) // (160 * count.clamp(min=1))  # [A, L]
    powers = 2 ** torch.arange(1, MAX_SHIFT, device=count.device)  # [30]
    return (ratio[..., None] >= powers).sum(-1)  # [A, L]


def varint_bytes(value: Tensor) -> Tensor:
    limits = 2 ** (7 * torch.arange(1, MAX_VARINT_BYTES, device=value.device))  # [4]
    return 1 + (value[..., None] >= limits).sum(-1)  # [A, L]


def block_bits(members: Tensor, ones: Tensor, layers: Sequence[int], where: LayerMap) -> Tensor:
    """`blocks.cut(...).bits` of each agent's layers."""
    in_block = torch.cat(
        [
            pad(members[:, part], (0, -size % BLOCK)).view(len(members), -1, BLOCK).sum(2, dtype=torch.int32)
            for part, size in zip(slices(layers), layers, strict=True)
        ],
        1,
    )  # [A, B]
    centre = (2 * BLOCK * ones + where.sizes) // (2 * where.sizes)  # [A, L]
    away = in_block - centre[:, where.of_block]  # [A, B]
    steps = torch.where(away < 0, -2 * away - 1, 2 * away)
    s = torch.arange(len(STEP_PARAMETERS), device=members.device)[:, None, None]  # [6, 1, 1]
    lengths = torch.cat([steps >> s, where.rank_widths[in_block][None]])  # [7, A, B]
    parts = slices([-(-size // BLOCK) for size in layers])
    total = torch.stack([lengths[:, :, part].sum(2) for part in parts], 2)  # [7, A, L]
    return (total[:-1] + where.counts * (1 + s)).amin(0) + total[-1]  # [A, L]
