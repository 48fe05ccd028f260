"""The cost of every agent's mask at once, with torch alone: nothing leaves the device inside a round.

Same rules as `sets.plan_layer`, same numbers to the byte.
Shapes: A agents, P weights, n weights of one layer.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def mask_frame_size_torch(masks: Tensor, base: Tensor | None, layers: Sequence[int]) -> Tensor:
    """Bytes of each agent's frame with one mask leaf: the smaller of keyframe and delta."""
    keyframe = keyframe_size_torch(masks, layers)  # [A]
    return keyframe if base is None else torch.minimum(keyframe, delta_size_torch(masks ^ base, layers))


def keyframe_size_torch(masks: Tensor, layers: Sequence[int]) -> Tensor:
    """Bytes of each agent's keyframe; `masks` [A, P] bool."""
    return FRAME_BYTES + 1 + set_size_torch(masks, layers)  # [A]


def delta_size_torch(flips: Tensor, layers: Sequence[int]) -> Tensor:
    """Bytes of each agent's delta; `flips` [A, P] bool."""
    return FRAME_BYTES + 1 + set_size_torch(flips, layers)  # [A]


def set_size_torch(members: Tensor, layers: Sequence[int]) -> Tensor:
    """Bytes of `sets.encode_set` of each row."""
    table = torch.zeros(len(members), dtype=torch.int64, device=members.device)
    bits = torch.zeros_like(table)
    for part in slices(layers):
        layer_table, layer_bits = layer_size(members[:, part])
        table, bits = table + layer_table, bits + layer_bits
    return table + (bits + 7) // 8  # [A]


def layer_size(layer: Tensor) -> tuple[Tensor, Tensor]:
    """Table bytes and bits of the shortest code of each row, [A] each."""
    size = layer.shape[1]
    ones = layer.sum(1)  # [A] int64
    minority = torch.minimum(ones, size - ones)
    gaps = torch.where(minority * GAPS_UP_TO <= size, gap_bits(layer, ones, minority), NEVER)
    blocks = torch.where(minority * BLOCKS_FROM > size, block_bits(layer, ones), NEVER)
    raw = torch.full_like(ones, size)
    bits = torch.stack([gaps, blocks, raw])  # [3, A]
    table = torch.stack([1 + varint_bytes(minority), torch.full_like(ones, 2), torch.ones_like(ones)])
    best = (bits + 8 * table).argmin(0, keepdim=True)  # [1, A]; a tie never changes the sum
    empty = minority == 0
    return (
        torch.where(empty, 1, table.gather(0, best)[0]),
        torch.where(empty, 0, bits.gather(0, best)[0]),
    )


def gap_bits(layer: Tensor, ones: Tensor, minority: Tensor) -> Tensor:
    """`gaps.gap_bits` of each row, of its minority."""
    size = layer.shape[1]
    k = rice_parameter(minority, size)  # [A]
    chosen = layer ^ (2 * ones > size)[:, None]  # [A, n]
    index = torch.arange(size, dtype=torch.int32, device=layer.device)  # [n]
    last = torch.where(chosen, index, -1).cummax(1).values  # [A, n] the position at or before each weight
    gap = index - pad(last[:, :-1], (1, 0), value=-1) - 1  # [A, n]
    high = torch.where(chosen, gap >> k[:, None].to(torch.int32), 0).sum(1)  # [A]
    return high + minority * (1 + k)


def rice_parameter(count: Tensor, size: int) -> Tensor:
    """`gaps.rice_parameter` of each count; floor(log2) as a count of the powers of two that fit."""
    ratio = 77 * (2 * size - count) // (160 * count.clamp(min=1))  # [A]
    powers = 2 ** torch.arange(1, MAX_SHIFT, device=count.device)  # [30]
    return (ratio[:, None] >= powers).sum(1)  # [A]


def varint_bytes(value: Tensor) -> Tensor:
    limits = 2 ** (7 * torch.arange(1, MAX_VARINT_BYTES, device=value.device))  # [4]
    return 1 + (value[:, None] >= limits).sum(1)  # [A]


def block_bits(layer: Tensor, ones: Tensor) -> Tensor:
    """`blocks.cut(...).bits` of each row."""
    size = layer.shape[1]
    count = -(-size // BLOCK)
    in_block = pad(layer, (0, count * BLOCK - size)).view(-1, count, BLOCK).sum(2)  # [A, blocks]
    away = in_block - ((2 * BLOCK * ones + size) // (2 * size))[:, None]  # [A, blocks]
    steps = torch.where(away < 0, -2 * away - 1, 2 * away)
    lengths = torch.stack([(steps >> s).sum(1) + count * (1 + s) for s in STEP_PARAMETERS])  # [6, A]
    return lengths.amin(0) + rank_widths(layer.device)[in_block].sum(1)


@cache
def rank_widths(device: torch.device) -> Tensor:
    """Copied to each device once."""
    return torch.as_tensor(RANK_WIDTHS, device=device)  # [65]
