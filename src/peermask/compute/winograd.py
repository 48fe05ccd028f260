"""A 5x5 convolution of one agent on a CPU in fewer multiplications (Winograd, Cook and Toom).

An 8x8 tile of the input gives 4x4 outputs. In one dimension, for a filter g of 5 taps and a tile d of 8 entries,

    y = Aᵀ [(G g) ⊙ (Bᵀ d)]

is their correlation: 8 products instead of 20, and in two dimensions 64 instead of 400. The products of all tiles
are 64 matrix products over channels; everything else is linear, and its gradient the same steps transposed.

Inside, tensors lie as [width, height, image, channel]: a tile is then a slice, and a transform one product with a
long row. A tile's part beyond the edge is zero, so the matching columns of Bᵀ are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Shapes: N images, C channels in, O out, H x W pixels in, OH x OW out, T tiles an image
TAPS, OUTPUTS, TILE = 5, 4, 8
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)  # and infinity: where polynomials are multiplied; small powers of two
IMAGES = 64  # at once: their transforms stay in the cache


def _matrices() -> tuple[Tensor, Tensor, Tensor]:
    """Aᵀ [4, 8], G [8, 5], Bᵀ [8, 8]; Aᵀ and Bᵀ are exact in float32."""
    a_t, g, b_t = np.zeros((OUTPUTS, TILE)), np.zeros((TILE, TAPS)), np.zeros((TILE, TILE))
    for j, point in enumerate(POINTS):
        others = [other for other in POINTS if other != point]
        a_t[:, j] = point ** np.arange(OUTPUTS)
        g[j] = point ** np.arange(TAPS) / np.prod([point - other for other in others])
        b_t[j, : TILE - 1] = np.poly(others)[::-1]
    a_t[-1, -1] = g[-1, -1] = 1
    b_t[-1] = np.poly(POINTS)[::-1]
    return torch.tensor(a_t).float(), torch.tensor(g), torch.tensor(b_t).float()


A_T, G, B_T = _matrices()
GG = torch.kron(G, G)  # [64, 25] float64: the filter is small, and its rounding would reach everything


@dataclass(frozen=True)
class _Tile:
    """A tile along one axis, without what lies beyond the edges."""

    into: slice  # of the input
    b_t: Tensor  # [8, at most 8]
    out: slice  # of the output
    a_t: Tensor  # [at most 4, 8]

    @cached_property
    def each(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """b_t, its transpose, a_t and its transpose, for each of the 8 columns of a tile: [8, ...]."""
        b_t, b, a_t, a = (matrix.expand(TILE, -1, -1) for matrix in (self.b_t, self.b_t.T, self.a_t, self.a_t.T))
        return b_t, b, a_t, a


@lru_cache(maxsize=16)
def _tiles(size: int, padding: int) -> tuple[_Tile, ...]:
    outputs = size + 2 * padding - TAPS + 1
    tiles = []
    for first in range(0, outputs, OUTPUTS):
        start = first - padding
        into = slice(max(start, 0), min(start + TILE, size))
        out = slice(first, min(first + OUTPUTS, outputs))
        tiles.append(_Tile(into, B_T[:, into.start - start : into.stop - start], out, A_T[: out.stop - first]))
    return tuple(tiles)


def winograd_pays(x: Tensor, weight: Tensor, padding: tuple[int, int]) -> bool:
    """Whether a convolution with stride 1 is supported here and faster than in torch.

    As measured: with few channels or images the transforms cost more than the products they save, and a tile that
    lies half beyond the edge saves too little.
    """
    outputs, channels, *taps = weight.shape
    if (
        x.dim() != 4
        or taps != [TAPS, TAPS]
        or max(padding) >= TAPS
        or x.device.type != "cpu"
        or x.dtype != torch.float32
    ):
        return False
    if len(x) < 32 or min(outputs, channels) < 32 or outputs % 16 or channels % 16:  # 16 floats: a line of the cache
        return False
    height, width = (size + 2 * pad - TAPS + 1 for size, pad in zip(x.shape[2:], padding, strict=True))
    tiles = -(-height // OUTPUTS) * -(-width // OUTPUTS)
    return min(height, width) > 0 and TAPS**2 * height * width >= 4 * TILE**2 * tiles


def winograd(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
    """`F.conv2d(x, weight, bias, padding=padding)` of 5x5 filters; fastest in channels-last layout."""
    result: Tensor = _Convolution.apply(x, weight, bias, padding)  # type: ignore[no-untyped-call]
    return result


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        total, channels, height, width = x.shape
        outputs = len(weight)
        down, across = _tiles(height, padding[0]), _tiles(width, padding[1])
        taps = weight.permute(3, 2, 1, 0).reshape(TAPS * TAPS, channels * outputs)
        u = (GG @ taps.double()).float().view(TILE * TILE, channels, outputs)
        result = x.new_empty(total, down[-1].out.stop, across[-1].out.stop, outputs).permute(0, 3, 1, 2)
        saved, keeps = [], any(ctx.needs_input_grad)
        for part in _parts(total):
            rows, y = _turned(x[part]), _empty_turned(result[part])
            images = rows.shape[2]
            # Written over for every tile: memory that was just used is still in the cache.
            into = x.new_empty(TILE, height, images * channels)
            m = x.new_empty(TILE * TILE, images, outputs)
            transformed = _Pixels(m, y)
            # Views are made once: Python, which all workers share, is a part of the cost.
            steps = [(row, row.each[0], into[:, row.into]) for row in down]
            for column in across:
                torch.mm(column.b_t, rows[column.into].flatten(1), out=into.flatten(1))
                for row, b_t, before in steps:
                    v = torch.bmm(b_t, before).view(TILE * TILE, images, channels)  # Bᵀ d B
                    torch.bmm(v, u, out=m)
                    transformed.tile(column, row)
                    if keeps:
                        saved.append(v)
                transformed.end(column)
            torch.add(y, 0 if bias is None else bias, out=result[part].permute(3, 2, 0, 1))
        ctx.tiles = down, across
        ctx.save_for_backward(x, u, *saved)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        down, across = ctx.tiles
        x, u, *saved = ctx.saved_tensors
        _, channels, outputs = u.shape
        tiles, u_t = iter(saved), u.transpose(1, 2)
        du, dx = torch.zeros_like(u), torch.empty_like(x)
        for part in _parts(len(x)):
            dy, drows = _turned(gradient[part]), _empty_turned(x[part]).zero_()
            images = dy.shape[2]
            dm = x.new_empty(TILE * TILE, images, outputs)
            dv = x.new_empty(TILE * TILE, images, channels)
            dinto = x.new_empty(TILE, drows.shape[1], images * channels)
            transformed = _Points(dy, dm)
            dv_square = dv.view(TILE, TILE, -1)
            steps = [(row, row.each[1], dinto[:, row.into]) for row in down]
            for column in across:
                transformed.begin(column)
                dinto.zero_()
                for row, b, before in steps:
                    transformed.tile(column, row)
                    du.baddbmm_(next(tiles).transpose(1, 2), dm)
                    torch.bmm(dm, u_t, out=dv)
                    before.baddbmm_(b, dv_square)
                drows[column.into].flatten(1).addmm_(column.b_t.T, dinto.flatten(1))
            dx[part].permute(3, 2, 0, 1).copy_(drows)
        taps = (GG.T @ du.flatten(1).double()).float()
        dw = taps.view(TAPS, TAPS, channels, outputs).permute(3, 2, 1, 0)
        return dx, dw, gradient.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None, None


class _Pixels:
    """y = Aᵀ m A of one tile after another: m [64, n, O], written over for each -> [W, H, n, O]."""

    def __init__(self, m: Tensor, y: Tensor) -> None:
        self.m, self.y = m.view(TILE, TILE, -1), y.flatten(2)
        self.between = y.new_empty(TILE, *self.y.shape[1:])

    def tile(self, _: _Tile, row: _Tile) -> None:
        torch.bmm(row.each[2], self.m, out=self.between[:, row.out])

    def end(self, column: _Tile) -> None:
        """Finish a column after its last tile."""
        torch.mm(column.a_t, self.between.flatten(1), out=self.y[column.out].flatten(1))


class _Points:
    """dm = A dy Aᵀ of one tile after another: [W, H, n, O] -> dm [64, n, O], written over for each."""

    def __init__(self, dy: Tensor, dm: Tensor) -> None:
        self.dy, self.dm = dy.flatten(2), dm.view(TILE, TILE, -1)
        self.between = dy.new_empty(TILE, *self.dy.shape[1:])

    def begin(self, column: _Tile) -> None:
        """Start a column before its first tile."""
        torch.mm(column.a_t.T, self.dy[column.out].flatten(1), out=self.between.flatten(1))

    def tile(self, _: _Tile, row: _Tile) -> None:
        torch.bmm(row.each[3], self.between[:, row.out], out=self.dm)


def _parts(images: int) -> Iterator[slice]:
    return (slice(start, min(start + IMAGES, images)) for start in range(0, images, IMAGES))


def _turned(x: Tensor) -> Tensor:
    """[n, C, H, W] -> [W, H, n, C]"""
    return x.permute(3, 2, 0, 1).contiguous()


def _empty_turned(x: Tensor) -> Tensor:
    return x.new_empty([x.shape[axis] for axis in (3, 2, 0, 1)])
