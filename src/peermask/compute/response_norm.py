"""Local response norm of one agent on a CPU in few passes over memory.

    y_c = e_c u_c^-0.75,   u_c = 1 + α/size · Σ e_j² over a window of channels around c

As separate operations each would read a large layer from memory; here a block of pixels goes through all of them
while it is in the cache. A window's sum is a few shifted additions over rows with zeros around them, and its gradient
the same in the other direction; with many channels it is a product with a band of ones.
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
        y = torch.empty_like(e)
        roots = torch.empty_like(e) if ctx.needs_input_grad[0] else None  # u^-0.5
        for rows, window in _blocks(e, size, alpha / size, size // 2):
            root = torch.empty_like(y[rows]) if roots is None else roots[rows]
            window.inverse_roots(e[rows], root)
            torch.mul(e[rows], torch.sqrt(root).mul_(root), out=y[rows])
        ctx.window = size, alpha / size, size - 1 - size // 2
        ctx.save_for_backward(e, roots)
        return _as_images(y, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        e, roots = ctx.saved_tensors
        dy = _pixels(gradient)
        de = torch.empty_like(e)
        for rows, window in _blocks(e, *ctx.window):
            root = roots[rows]
            direct = torch.sqrt(root).mul_(root).mul_(dy[rows])  # dy u^-0.75
            window.gradient(e[rows], root, direct, de[rows])
        return _as_images(de, gradient), None, None


class _Window:
    """scale · Σ over `size` channels from c - below on, for every channel c of some pixels."""

    def __init__(self, pixels: Tensor, size: int, scale: float, below: int) -> None:
        rows, channels = pixels.shape
        self.scale, self.band = scale, None
        if channels > MOST_ADDED:
            self.band = _band(channels, size, scale, below).to(pixels.dtype)
            size, below = 1, 0
        padded = pixels.new_zeros(rows, channels + size - 1)
        totals = torch.empty_like(padded)
        self.entries = padded[:, below : below + channels]  # [rows, C], to be filled
        self._sums = totals[:, :channels]
        count = padded.numel() - size + 1
        self._total, flat = totals.view(-1)[:count], padded.view(-1)  # a row's zeros keep its neighbours out
        self._shifted = [flat[apart : apart + count] for apart in range(size)]

    def inverse_roots(self, e: Tensor, out: Tensor) -> None:
        """u^-0.5"""
        torch.mul(e, e, out=self.entries)
        torch.add(self.sums(), 1, out=out).rsqrt_()

    def gradient(self, e: Tensor, root: Tensor, direct: Tensor, out: Tensor) -> None:
        """de, where `direct` is dy u^-0.75."""
        torch.mul(root.square().mul_(direct), e, out=self.entries)  # dy e u^-1.75
        torch.sub(direct, self.sums().mul_(e), alpha=2 * BETA, out=out)

    def sums(self) -> Tensor:
        """[rows, C] of the entries, in memory that is used again."""
        if self.band is not None:
            return torch.mm(self.entries, self.band, out=self._sums)
        first, *others = self._shifted
        torch.mul(first, self.scale, out=self._total)
        for other in others:
            self._total.add_(other, alpha=self.scale)
        return self._sums


def _pixels(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N H W, C]: a view where channels lie last."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _as_images(pixels: Tensor, like: Tensor) -> Tensor:
    images, channels, height, width = like.shape
    return pixels.view(images, height, width, channels).permute(0, 3, 1, 2)


def _blocks(pixels: Tensor, size: int, scale: float, below: int) -> Iterator[tuple[slice, _Window]]:
    """Some rows at a time, and a window that fits them."""
    step = min(len(pixels), max(1, ENTRIES // pixels.shape[1]))
    window: _Window | None = None
    for start in range(0, len(pixels), step):
        rows = slice(start, start + step)
        if window is None or rows.stop > len(pixels):
            window = _Window(pixels[rows], size, scale, below)
        yield rows, window


@lru_cache(maxsize=16)
def _band(channels: int, size: int, scale: float, below: int) -> Tensor:
    """[C, C] `scale` where channel j (row) lies in the window of channel c (column): c - below and on."""
    apart = torch.arange(channels)[:, None] - torch.arange(channels)  # j - c
    return torch.where((apart >= -below) & (apart < size - below), scale, 0.0)
