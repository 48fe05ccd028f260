"""Augmentation: random horizontal flips and shifts of training images.

Drawn on the CPU from keyed streams, applied on the device of the images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from peermask.errors import DataError
from peermask.streams import stream


@dataclass(frozen=True)
class Augmentation:
    flip: bool = False  # mirror half of the images
    crop: int = 0  # pad by this many pixels on every side, then cut the old size out at a random place

    def __post_init__(self) -> None:
        if self.crop < 0:
            raise DataError(f"augmentation crop is {self.crop}; it must be 0 pixels or more")

    def draw(self, count: int, seed: int, agent: int, round: int, step: int = 0) -> tuple[Tensor, Tensor]:
        """Which images to mirror, [B] bool, and where to cut each, [B, 2] int64 (down, right)."""
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
