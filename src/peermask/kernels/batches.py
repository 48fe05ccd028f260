"""Batches of all agents in one launch: images and labels by index, pixels normalised on the way."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 1024  # entries of an image at once


def gather_triton(images: Tensor, labels: Tensor, index: Tensor, peak: float) -> tuple[Tensor, Tensor]:
    """(x / peak - 0.5) / 0.5 of images [n, C, H, W] at `index` [A, B], and their labels: [A, B, C, H, W], [A, B].

    Channels lie last in memory, where convolutions want them.
    """
    from peermask.kernels.batches_triton import gather_kernel

    channels, height, width = images.shape[1:]
    pixels = height * width
    out = torch.empty(*index.shape, height, width, channels, device=images.device)
    picked = torch.empty(index.shape, dtype=labels.dtype, device=images.device)
    grid = (index.numel(), -(-pixels * channels // _BLOCK))
    gather_kernel[grid](images, labels, index.contiguous(), out, picked, peak, pixels, channels, _BLOCK)
    return out.permute(0, 1, 4, 2, 3), picked
