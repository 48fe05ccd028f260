"""Guard against liars: masks that are too far from an agent's own are not counted.

The distance of two masks with a_l and b_l ones in layer l, o of them in common in all:

    δ = Σ_l (min(a_l, b_l) − o_l) / Σ_l (min(a_l, b_l) − a_l b_l / n_l)

is 0 where one contains the other, 1 on average for masks that have nothing to do with each other, and above 1 for
opposites, for any retentions. Agents start from the same scores, so honest masks stay close to each other.

A neighbour is believed if δ is at most `factor` times the median over all neighbours, and at most `HALFWAY` to an
unrelated mask. The median detects liars if they are few; the fixed limit holds for any number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import numpy as np
import torch
from pydantic import AfterValidator
from torch import Tensor

from peermask.graph.links import Links
from peermask.kernels.blocks import block_table, in_lines


def _factor(value: float) -> float:
    if value != 0 and value < 1:
        raise ValueError("must be 0 (off) or at least 1: below 1 half of all neighbours would be ignored")
    return value


Guard = Annotated[float, AfterValidator(_factor)]

# Shapes: A receivers, K received masks, E links, P weights, L layers
HALFWAY = 0.5
BLOCK = 2**28  # entries of masks that are compared at a time


def believed_links(masks: Tensor, received: Tensor, heard: Links, sizes: Sequence[int], factor: float) -> Links:
    """Select the links whose messages are believed: masks [A, P] and messages [K, P], both bool."""
    if heard.is_paired and len(received) <= MOST:
        return Links.of(believed_links_triton(masks, received, heard.pairs, sizes, factor, HALFWAY))
    distance = distances(masks, received, heard, sizes)
    limit = (factor * heard.median(distance)).clamp(max=HALFWAY)  # [A]
    return heard.where(distance <= heard.by_receiver(limit))


def distances(masks: Tensor, received: Tensor, heard: Links, sizes: Sequence[int]) -> Tensor:
    """δ on every link, float64: [E], or [A, K] where those of pairs that are not heard mean nothing."""
    if heard.is_paired:
        both, own, theirs = overlaps_triton(masks, received, sizes)  # [A, K], [A, L], [K, L]
        theirs = theirs[None]
    else:
        both, own = _overlaps(masks, received, heard), ones_by_layer(masks, sizes)
        theirs = ones_by_link(received, heard, sizes)
    a, b = heard.by_receiver(own.double()), theirs.double()  # [E, L] each, or [A, 1, L], [1, K, L]
    smaller = torch.minimum(a, b)
    chance = a * b / _on_device(tuple(sizes), masks.device)
    # Where nothing can differ (everything is kept) the distance is 0.
    return (smaller.sum(-1) - both) / (smaller - chance).sum(-1).clamp(min=1e-9)


def ones_by_layer(masks: Tensor, sizes: Sequence[int]) -> Tensor:
    """Count the ones of each layer, [A, L] int64."""
    if masks.device.type == "cpu":  # numpy counts a byte at a time, torch widens each to eight
        return torch.tensor([_ones(row, sizes) for row in masks])
    return torch.stack([layer.sum(1) for layer in masks.split(list(sizes), dim=1)], dim=1)


def ones_by_link(received: Tensor, heard: Links, sizes: Sequence[int]) -> Tensor:
    """Ones by layer of what comes over each link, [E, L]. Messages that are not received are ignored."""
    messages, which = heard.messages_heard
    if received.device.type == "cpu":
        ones = torch.tensor([_ones(received[j], sizes) for j in messages.tolist()], dtype=torch.int64)
        return ones.reshape(-1, len(sizes))[torch.from_numpy(which)]
    ones = ones_by_layer(received[torch.from_numpy(messages).to(received.device)], sizes)
    return ones[torch.from_numpy(which).to(received.device)]


def _overlaps(masks: Tensor, received: Tensor, heard: Links) -> Tensor:
    """Entries kept by both ends of a link, [E]."""
    if masks.device.type == "cpu":
        ends = zip(heard.receivers.tolist(), heard.senders.tolist(), strict=True)
        common = [int(np.count_nonzero(masks[i].numpy() & received[j].numpy())) for i, j in ends]
        return torch.tensor(common, dtype=torch.int64)
    both = torch.empty(len(heard.senders), dtype=torch.int64, device=masks.device)
    i, j = (torch.from_numpy(ends).to(masks.device) for ends in (heard.receivers, heard.senders))
    for part in torch.arange(len(both)).split(max(1, BLOCK // masks.shape[1])):
        both[part] = (masks[i[part]] & received[j[part]]).sum(1)
    return both


@lru_cache(maxsize=16)
def _on_device(sizes: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.float64) -> Tensor:
    """Cache tensors on the device: a copy from the host would make the round wait."""
    return torch.tensor(sizes, dtype=dtype, device=device)


def _ones(mask: Tensor, sizes: Sequence[int]) -> list[int]:
    return [int(np.count_nonzero(layer.numpy())) for layer in mask.split(list(sizes))]


# On a GPU, by kernels

MOST = 128  # messages that one program ranks
_TILE = 32  # agents, and messages, that a program compares
_COLUMNS = 2048  # columns taken by a program,
_STEP = 64  # so many at a time


def overlaps_triton(masks: Tensor, received: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Entries kept by both [A, K], and ones by layer of own [A, L] and received masks [K, L]: [A, P], [K, P] bool."""
    from peermask.kernels.votes_triton import overlap_kernel

    masks, received = masks.contiguous(), received.contiguous()
    (agents, width), senders, layers, device = masks.shape, len(received), len(sizes), masks.device
    blocks = block_table(tuple(sizes), device, _COLUMNS)
    counts = torch.zeros(agents * senders + (agents + senders) * layers, dtype=torch.int32, device=device)
    both, own, theirs = counts.split([agents * senders, agents * layers, senders * layers])
    grid = (len(blocks), -(-agents // _TILE), -(-senders // _TILE))
    overlap_kernel[grid](
        masks.view(torch.int8), received.view(torch.int8), blocks, both, own, theirs, agents, senders, width, layers,
        in_lines(sizes), _TILE, _STEP, num_warps=4,
    )  # fmt: skip
    return both.view(agents, senders), own.view(agents, layers), theirs.view(senders, layers)


def believed_links_triton(
    masks: Tensor, received: Tensor, heard: Tensor, sizes: Sequence[int], factor: float, limit: float
) -> Tensor:
    """Select the messages that are believed among those heard, [A, K], for K up to `MOST`."""
    from peermask.kernels.votes_triton import believe_kernel

    both, own, theirs = overlaps_triton(masks, received, sizes)
    agents, senders = both.shape
    out = torch.empty(agents, senders, dtype=torch.bool, device=masks.device)
    table = _on_device(tuple(sizes), masks.device, torch.int32)
    places = max(16, 1 << (senders - 1).bit_length())
    believe_kernel[(agents,)](
        both, own, theirs, heard.contiguous(), table, out, factor, limit, senders, len(sizes), places, num_warps=4
    )
    return out
