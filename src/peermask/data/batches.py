"""Batches: which of its samples an agent trains on in a step, and how images among them are changed at random.

Drawn on the CPU from keyed streams, in any order of computing agents; images are changed on their own device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from peermask.data.partition import Indices
from peermask.errors import DataError
from peermask.streams import raw_of_each, stream


def batch_rows(
    samples: Sequence[Indices], size: int, seed: int, agents: Sequence[int], round: int, step: int = 0
) -> Indices:
    """Draw for each agent the first `size` samples of a new shuffle.

    That is without replacement in a batch, with replacement across rounds. All rows are as wide as the largest; an
    agent with fewer samples repeats them.
    """
    counts = [len(own) for own in samples]
    rows = np.empty((len(counts), min(size, max(counts))), np.int64)
    keys = raw_of_each(seed, "batch", agents, round, step, counts)
    for row, own, drawn in zip(rows, samples, keys, strict=True):
        batch = own[smallest(drawn, size)]
        row[:] = batch if len(batch) == len(row) else np.resize(batch, len(row))
    return rows  # [A, B]


def smallest(keys: NDArray[np.uint64], count: int) -> Indices:
    """Return the places of the `count` smallest keys, in order.

    This is the start of `Stream.permutation`, without sorting the rest. Keys are spread evenly, so that enough of them
    lie below a number that is known beforehand; if not, all are sorted. Of equal keys the first comes first.
    """
    share = (count + 4 * sqrt(count) + 8) / len(keys)
    if share < 1:
        (near,) = (keys <= np.uint64(share * 2.0**64)).nonzero()
        if len(near) >= count:  # they rise, so that a stable sort leaves equal keys in their order
            return near[keys[near].argsort(kind="stable")[:count]]  # [count]
    return keys.argsort(kind="stable")[:count]  # [min(count, n)]


@dataclass(frozen=True)
class Augmentation:
    """Random horizontal flips and shifts of training images."""

    flip: bool = False  # mirror half of the images
    crop: int = 0  # pad by this many pixels on every side, then cut the old size out at a random place

    def __post_init__(self) -> None:
        if self.crop < 0:
            raise DataError(f"augmentation crop is {self.crop}; it must be 0 pixels or more")

    def draw(self, count: int, seed: int, agent: int, round: int, step: int = 0) -> tuple[Tensor, Tensor]:
        """Draw which images to mirror, [B] bool, and where to cut each, [B, 2] int64 (down, right)."""
        source = stream(seed, "augment", agent, round, step)
        flips = torch.from_numpy(source.uniform(count) < 0.5) & self.flip  # [B]
        places = torch.from_numpy(source.uniform(2 * count) * (2 * self.crop + 1))
        return flips, places.long().view(count, 2)

    def apply(self, images: Tensor, flips: Tensor, offsets: Tensor) -> Tensor:
        """Cut, then mirror. Images are normalised already: the padding is 0 there, a middle grey."""
        height, width = images.shape[2:]
        padded = pad(images, [self.crop] * 4)  # [B, C, H + 2 crop, W + 2 crop]
        rows = offsets[:, :1] + torch.arange(height, device=images.device)  # [B, H]
        columns = offsets[:, 1:] + torch.arange(width, device=images.device)  # [B, W]
        columns = torch.where(flips.unsqueeze(1), columns.flip(1), columns)
        image = torch.arange(len(images), device=images.device).view(-1, 1, 1)
        cut = padded[image, :, rows.unsqueeze(2), columns.unsqueeze(1)]  # [B, H, W, C]
        return cut.permute(0, 3, 1, 2).contiguous()  # [B, C, H, W]
