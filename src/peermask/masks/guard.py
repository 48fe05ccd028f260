"""Whose masks an agent believes: neighbours whose masks lie too far from its own are not counted.

The distance of two masks with a_l and b_l ones in layer l, o of them in common in all:

    δ = Σ_l (min(a_l, b_l) − o_l) / Σ_l (min(a_l, b_l) − a_l b_l / n_l)

is 0 where one contains the other, 1 on average for masks that have nothing to do with each other, and above 1 for
opposites, whatever their retentions. Agents start from the same scores, so honest masks stay close to each other.

A neighbour is believed if δ is at most `factor` times the median over all neighbours, and at most `HALFWAY` to an
unrelated mask. The median finds who lies where liars are few; the fixed limit holds however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from peermask.kernels import by_kernels
from peermask.kernels.overlap import MOST, believed_triton, overlaps_triton

# Shapes: A receivers, K received masks, P weights, L layers
HALFWAY = 0.5


def believed(masks: Tensor, received: Tensor, heard: Tensor, sizes: Sequence[int], factor: float) -> Tensor:
    """Which of the messages that are heard [A, K] count: [A, P], [K, P] bool -> [A, K]."""
    if by_kernels(masks) and len(received) <= MOST:
        return believed_triton(masks, received, heard, sizes, factor, HALFWAY)
    distance = distances(masks, received, heard, sizes)  # [A, K]
    limit = (factor * median(distance, heard)).clamp(max=HALFWAY)
    return heard & (distance <= limit[:, None])


def distances(masks: Tensor, received: Tensor, heard: Tensor, sizes: Sequence[int]) -> Tensor:
    """δ of every pair that is heard, [A, K] float64; other entries mean nothing."""
    overlaps = (
        overlaps_triton(masks, received, sizes) if by_kernels(masks) else _overlaps(masks, received, heard, sizes)
    )
    both, own, theirs = overlaps  # [A, K], [A, L], [K, L]
    a, b = own.double()[:, None], theirs.double()[None]  # [A, 1, L], [1, K, L]
    smaller = torch.minimum(a, b)  # [A, K, L]
    chance = a * b / _on_device(tuple(sizes), masks.device)
    # Where nothing can differ (everything is kept) the distance is 0.
    return (smaller.sum(-1) - both) / (smaller - chance).sum(-1).clamp(min=1e-9)


def median(values: Tensor, among: Tensor) -> Tensor:
    """[A]: of the chosen values of each row, the mean of the middle two; 0 where none is chosen."""
    ranked = values.masked_fill(~among, torch.inf).sort(dim=1).values  # [A, K]
    count = among.sum(1, keepdim=True)  # [A, 1]
    middle = torch.cat([(count - 1).clamp(min=0) // 2, (count // 2).clamp(max=values.shape[1] - 1)], dim=1)
    return torch.where(count[:, 0] > 0, ranked.gather(1, middle).mean(1), 0.0)


def ones_by_layer(masks: Tensor, sizes: Sequence[int]) -> Tensor:
    """[A, L] int64."""
    if masks.device.type == "cpu":  # numpy counts a byte at a time, torch widens each to eight
        return torch.tensor([_ones(row, sizes) for row in masks])
    return torch.stack([layer.sum(1) for layer in masks.split(list(sizes), dim=1)], dim=1)


def _overlaps(masks: Tensor, received: Tensor, heard: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Entries kept by both of a pair that is heard [A, K]; ones by layer of own [A, L] and received masks [K, L]."""
    both = torch.zeros(heard.shape, dtype=torch.int64)
    theirs = torch.zeros(len(received), len(sizes), dtype=torch.int64)
    for j in heard.any(0).nonzero().flatten().tolist():
        theirs[j] = torch.tensor(_ones(received[j], sizes))
        for i in heard[:, j].nonzero().flatten().tolist():
            both[i, j] = int(np.count_nonzero(masks[i].numpy() & received[j].numpy()))
    return both, ones_by_layer(masks, sizes), theirs


@lru_cache(maxsize=16)
def _on_device(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Kept there: a copy from the host would make the round wait."""
    return torch.tensor(sizes, dtype=torch.float64, device=device)


def _ones(mask: Tensor, sizes: Sequence[int]) -> list[int]:
    return [int(np.count_nonzero(layer.numpy())) for layer in mask.split(list(sizes))]
