"""Local response norm of one agent on a CPU in few passes over memory.

    y_c = e_c u_c^-0.75,   u_c = 1 + α/size · Σ e_j² over a window of channels around c

Written as one operation after another each pass over a large layer comes from memory; here a block of pixels goes
through all of them while it is in the cache. A window's sum is a few shifted additions over rows with zeros around
them, and its gradient the same the other way round; with many channels it is a product with a band of ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BETA = 0.75  # the power that two square roots make
ENTRIES = 65_536  # of a block: a few such arrays fit into a core's cache
MOST_ADDED = 192  # channels; libraries add up products of more in parts, which rounds otherwise than additions in turn


def response_norm(x: Tensor, size: int, alpha: float) -> Tensor:
    """`LocalResponseNorm(size, alpha)(x)` of x [N, C, H, W] with the power -0.75; fastest in channels-last layout."""
    result: Tensor = _ResponseNorm.apply(x, size, alpha)  # type: ignore[no-untyped-call]
    return result


class _ResponseNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, alpha: float) -> Tensor:
        e = _pixels(x)  # [N H W, C]
        window = _Window(e, size, alpha / size, size // 2)
        y = torch.empty_like(e)
        roots = torch.empty_like(e) if ctx.needs_input_grad[0] else None  # u^-0.5
        for rows in _blocks(e):
            part = e[rows]
            torch.mul(part, part, out=window.entries(len(part)))
            root = torch.add(window.sums(len(part)), 1, out=None if roots is None else roots[rows]).rsqrt_()
            torch.mul(part, torch.sqrt(root).mul_(root), out=y[rows])
        ctx.window = size, alpha / size, size - 1 - size // 2
        ctx.save_for_backward(e, roots)
        return _as_images(y, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        e, roots = ctx.saved_tensors
        dy = _pixels(gradient)
        de = torch.empty_like(e)
        window = _Window(e, *ctx.window)
        for rows in _blocks(e):
            part, root = e[rows], roots[rows]
            direct = torch.sqrt(root).mul_(root).mul_(dy[rows])  # dy u^-0.75
            torch.mul(root.square().mul_(direct), part, out=window.entries(len(part)))  # dy e u^-1.75
            torch.sub(direct, window.sums(len(part)).mul_(part), alpha=2 * BETA, out=de[rows])
        return _as_images(de, gradient), None, None


class _Window:
    """scale · Σ over `size` channels from c - below on, for every channel c of a block's rows."""

    def __init__(self, pixels: Tensor, size: int, scale: float, below: int) -> None:
        rows, self.channels = _rows(pixels), pixels.shape[1]
        self.size, self.scale, self.below = size, scale, below
        self.band = None
        if self.channels > MOST_ADDED:
            self.size, self.below = 1, 0
            self.band = _band(self.channels, size, scale, below).to(pixels.dtype)
        self.padded = pixels.new_zeros(rows, self.channels + self.size - 1)
        self.totals = torch.empty_like(self.padded)

    def entries(self, rows: int) -> Tensor:
        """[rows, C], to be filled."""
        return self.padded[:rows, self.below : self.below + self.channels]

    def sums(self, rows: int) -> Tensor:
        """[rows, C] of the entries, in memory that is used again."""
        if self.band is not None:
            return torch.mm(self.padded[:rows], self.band, out=self.totals[:rows])
        flat = self.padded[:rows].view(-1)  # a row's zeros keep its neighbours out
        count = flat.numel() - self.size + 1
        total = torch.mul(flat[:count], self.scale, out=self.totals.view(-1)[:count])
        for apart in range(1, self.size):
            total.add_(flat[apart : apart + count], alpha=self.scale)
        return self.totals[:rows, : self.channels]


def _pixels(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N H W, C]: a view where channels lie last."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _as_images(pixels: Tensor, like: Tensor) -> Tensor:
    images, channels, height, width = like.shape
    return pixels.view(images, height, width, channels).permute(0, 3, 1, 2)


def _rows(pixels: Tensor) -> int:
    """Of a block."""
    return min(len(pixels), max(1, ENTRIES // pixels.shape[1]))


def _blocks(pixels: Tensor) -> Iterator[slice]:
    step = _rows(pixels)
    return (slice(start, start + step) for start in range(0, len(pixels), step))


@lru_cache(maxsize=16)
def _band(channels: int, size: int, scale: float, below: int) -> Tensor:
    """[C, C] `scale` where channel j (row) lies in the window of channel c (column): c - below and on."""
    apart = torch.arange(channels)[:, None] - torch.arange(channels)  # j - c
    return torch.where((apart >= -below) & (apart < size - below), scale, 0.0)
