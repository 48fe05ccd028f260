"""The cost of every agent's payload at once, with torch alone: nothing leaves the device inside a round.

Same rules as `sets.plan_layer`, same numbers to the byte. Where there is Triton, kernels/gaps.py counts the same.
Shapes: A agents, P weights, L layers, n weights of one layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from peermask.wire.cost import FRAME_BYTES
from peermask.wire.cursor import MAX_VARINT_BYTES
from peermask.wire.sets import slices

NEVER = 2**62  # bytes of a kind that cannot be used
MAX_SHIFT = 31
CHUNK = 256


def payload_frame_size_torch(
    payload: Mapping[str, Tensor],
    base: Mapping[str, Tensor] | None,
    layers: Sequence[int],
    ones: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """`frame_size(...).total` of each agent's payload [A, ...]; `ones`: of masks by layer [A, L], if known already."""
    masks = [leaf for leaf in payload.values() if leaf.dtype == torch.bool]
    sizes = [
        leaf_size_torch(leaf, None if base is None else base[name], layers, masks, (ones or {}).get(name))
        for name, leaf in payload.items()
    ]
    return FRAME_BYTES + torch.stack(sizes).sum(0)  # [A]


def leaf_size_torch(
    leaf: Tensor, base: Tensor | None, layers: Sequence[int], masks: Sequence[Tensor], ones: Tensor | None = None
) -> Tensor:
    """Bytes of `plan_leaf(...)` of each row, its kind byte included."""
    rows = leaf.flatten(1)  # [A, P]
    cut = layers if rows.shape[1] == sum(layers) else (rows.shape[1],)
    if leaf.dtype == torch.bool:
        return 1 + smaller_set(rows, None if base is None else base.flatten(1), cut, ones)
    # As the encoder does: -0.0 counts as a value.
    where, held = rows.view(torch.int32) != 0, None if base is None else base.flatten(1).view(torch.int32) != 0
    dense = torch.full((len(rows),), 4 * rows.shape[1], device=rows.device)
    ways = [dense, smaller_set(where, held, cut) + 4 * where.sum(1)]
    for mask in masks:
        if mask.shape == rows.shape:
            outside = (where & ~mask).any(1)
            ways.append(torch.where(outside, NEVER, 1 + 4 * mask.sum(1)))
    return 1 + torch.stack(ways).amin(0)  # [A]


def smaller_set(members: Tensor, base: Tensor | None, layers: Sequence[int], ones: Tensor | None = None) -> Tensor:
    """The smaller of keyframe and delta of each row."""
    keyframe = set_size_torch(members, layers, ones)  # [A]
    return keyframe if base is None else torch.minimum(keyframe, set_size_torch(members ^ base, layers))


def set_size_torch(members: Tensor, layers: Sequence[int], ones: Tensor | None = None) -> Tensor:
    """Bytes of `sets.encode_set` of each row of `members` [A, P].

    Two passes over the weights, `count_ones` and `high_parts`, with arithmetic on [A, L] around them.
    """
    ones = count_ones(members, layers) if ones is None else ones  # [A, L]
    # Filled on the device: a copy from the host would wait for all work under way.
    sizes = torch.cat([ones.new_full((1,), size) for size in layers])  # [L]
    count = torch.minimum(ones, sizes - ones)  # of the rarer symbol
    k = rice_parameter(count, sizes)
    gaps = high_parts(members, 2 * ones > sizes, k, layers) + count * (1 + k)
    entry = 1 + varint_bytes(count)
    shorter = 8 * entry + gaps < 8 + sizes
    entry = torch.where(shorter & (count > 0), entry, 1)
    bits = torch.where(shorter, gaps, sizes) * (count > 0)
    return entry.sum(1) + (bits.sum(1) + 7) // 8  # [A]


def count_ones(members: Tensor, layers: Sequence[int]) -> Tensor:
    """Members in each layer of each row."""
    if members.device.type == "cpu":  # numpy counts a byte at a time, torch widens each to eight
        rows = members.numpy()
        counts = [[np.count_nonzero(row[part]) for part in slices(layers)] for row in rows]
        return torch.tensor(counts, dtype=torch.int64)
    return torch.stack([layer.sum(1) for layer in members.split(list(layers), 1)], 1)  # [A, L]


def high_parts(members: Tensor, zeros_are_rarer: Tensor, k: Tensor, layers: Sequence[int]) -> Tensor:
    """Sum of `gap >> k` over the gaps between the rarer symbols of each layer; `zeros_are_rarer` and `k` are [A, L]."""
    swaps = zip(members.split(list(layers), 1), zeros_are_rarer.split(1, 1), strict=True)
    rare = torch.cat([layer ^ swap for layer, swap in swaps], 1)  # [A, P]
    gaps = gaps_before(rare, layers) * rare
    shifts = zip(gaps.split(list(layers), 1), k.to(torch.int32).split(1, 1), strict=True)
    return torch.stack([(layer >> shift).sum(1) for layer, shift in shifts], 1)  # [A, L]


def gaps_before(rare: Tensor, layers: Sequence[int]) -> Tensor:
    """How many positions lie between each and the nearest rare one below it in its layer, or the layer's start.

    A running maximum in two levels, inside chunks and then over chunks: a GPU scans many short rows side by
    side, but one long row on one multiprocessor.
    """
    size = rare.shape[1]
    chunks = -(-size // CHUNK)
    width = chunks * CHUNK
    below = torch.arange(-1, width - 1, dtype=torch.int32, device=rare.device)  # [width] the position below each
    start = torch.cat([below.new_full((part.stop - part.start,), part.start - 1) for part in slices(layers)])  # [P]
    shifted = pad(rare, (1, width - size - 1))
    own = torch.where(shifted, below, pad(start, (0, width - size))).view(-1, chunks, CHUNK).cummax(2).values
    carry = pad(own[:, :-1, -1], (1, 0), value=-1).cummax(1).values  # [A, chunks]
    last = torch.maximum(own, carry[:, :, None]).view(-1, width)[:, :size]
    return below[:size] - last  # [A, P]


def rice_parameter(count: Tensor, size: Tensor) -> Tensor:
    """`gaps.rice_parameter`; floor(log2) as a count of the powers of two that fit."""
    ratio = 77 * (2 * size - count) // (160 * count.clamp(min=1))  # [A, L]
    powers = 2 ** torch.arange(1, MAX_SHIFT, device=count.device)  # [30]
    return (ratio[..., None] >= powers).sum(-1)  # [A, L]


def varint_bytes(value: Tensor) -> Tensor:
    limits = 2 ** (7 * torch.arange(1, MAX_VARINT_BYTES, device=value.device))  # [4]
    return 1 + (value[..., None] >= limits).sum(-1)  # [A, L]
