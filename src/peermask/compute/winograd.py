"""A 5x5 convolution of one agent on a CPU in fewer multiplications (Winograd, Cook and Toom).

Along the height, m + 4 rows d of the input and a filter g of 5 taps give m rows of the output,

    y = Aᵀ [(G g) ⊙ (Bᵀ d)]

in m + 4 products instead of 5 m: one for each point at which polynomials are multiplied. A product is here a
convolution along the width, which torch computes for the tiles of all images at once. Everything else is linear, and
its gradient the same steps transposed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# Shapes: N images, C channels in, O out, H x W pixels in, OH x OW out, P points, T tiles of m rows of the output
TAPS = 5
# The first m + 3, and infinity: small errors for every m. At 1 all of Aᵀ is 1, so that a bias may be added there.
POINTS = (1.0, 0.0, -1.0, 2.0, -2.0, 0.5, -0.5, 0.25, -1.25, 3.0)
HEIGHTS = (3, 4, 5, 6, 7)  # m: a larger one saves more and rounds more, up to 1e-5 of a gradient
LEAST_PRODUCTS = 2**29  # of a plain convolution: with fewer, as measured, it is as fast


def matrices(height: int) -> tuple[Tensor, Tensor, Tensor]:
    """Aᵀ [m, P], G [P, 5] and Bᵀ [P, P] in float64."""
    size, points = height + TAPS - 1, POINTS[: height + TAPS - 2]
    a_t, g, b_t = np.zeros((height, size)), np.zeros((size, TAPS)), np.zeros((size, size))
    for j, point in enumerate(points):
        others = [other for other in points if other != point]
        a_t[:, j] = point ** np.arange(height)
        g[j] = point ** np.arange(TAPS) / np.prod([point - other for other in others])
        b_t[j, : size - 1] = np.poly(others)[::-1]
    a_t[-1, -1] = g[-1, -1] = 1
    b_t[-1] = np.poly(points)[::-1]
    return torch.tensor(a_t), torch.tensor(g), torch.tensor(b_t)


@lru_cache(maxsize=16)
def _whole(size: int, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Aᵀ [OH, P T] and Bᵀ [P T, H] of all tiles, without what lies beyond the edges, and G [P, 5]."""
    outputs = size + 2 * padding - TAPS + 1
    height = min(HEIGHTS, key=lambda m: _products(outputs, m))
    tiles = -(-outputs // height)
    a_t, g, b_t = matrices(height)
    whole_a, whole_b = torch.zeros(tiles * height, len(g), tiles), torch.zeros(len(g), tiles, size + 4 * TAPS)
    for tile, first in enumerate(range(0, outputs, height)):
        whole_a[first : first + height, :, tile] = a_t
        whole_b[:, tile, first : first + len(g)] = b_t
    return whole_a[:outputs].flatten(1), g.float(), whole_b[:, :, padding : padding + size].flatten(0, 1)


def _products(outputs: int, height: int) -> int:
    return -(-outputs // height) * (height + TAPS - 1)


def winograd_pays(x: Tensor, weight: Tensor, padding: tuple[int, int]) -> bool:
    """Whether a convolution with stride 1 is supported here and faster than in torch.

    In a small one, or with few channels, transforms and calls cost more than the products they save.
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
    if min(outputs, channels) < 32 or outputs % 16 or channels % 16:  # 16 floats: a line of the cache
        return False
    height, width = (size + 2 * pad - TAPS + 1 for size, pad in zip(x.shape[2:], padding, strict=True))
    saves = TAPS * height >= 2 * min(_products(height, m) for m in HEIGHTS)
    return min(height, width) > 0 and saves and len(x) * height * width * weight.numel() >= LEAST_PRODUCTS


def winograd(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
    """`F.conv2d(x, weight, bias, padding=padding)` of 5x5 filters; fastest in channels-last layout."""
    result: Tensor = _Convolution.apply(x, weight, bias, padding)  # type: ignore[no-untyped-call]
    return result


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        images, channels, height, width = x.shape
        a_t, g, b_t = whole = _whole(height, padding[0])
        taps = weight.permute(2, 0, 3, 1).reshape(TAPS, -1)
        u = (g @ taps).view(len(g), len(weight), 1, TAPS, channels).permute(0, 1, 4, 2, 3)
        v = _transformed(b_t, x).view(len(g), -1, images, width, channels).permute(0, 1, 4, 2, 3)  # [P, T, C, N, W]
        biases = [bias, *[None] * (len(g) - 1)]
        m = [F.conv2d(*own, padding=(0, padding[1])) for own in zip(v, u, biases, strict=True)]
        ctx.whole, ctx.padding = whole, padding
        ctx.save_for_backward(u, v)
        return _gathered(a_t, m)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        (a_t, g, b_t), (u, v), (into, _, biased, _) = ctx.whole, ctx.saved_tensors, ctx.needs_input_grad
        images, outputs, _, width = gradient.shape
        dm = _transformed(a_t.T, gradient).view(len(g), -1, images, width, outputs).permute(0, 1, 4, 2, 3)
        form = ([outputs], (1, 1), (0, ctx.padding[1]), (1, 1), False, (0, 0), 1)
        dv, du, db = zip(
            *(
                torch.ops.aten.convolution_backward(*own, *form, [into, True, biased and not place])
                for place, own in enumerate(zip(dm, v, u, strict=True))
            ),
            strict=True,
        )
        flat = torch.stack([own.permute(0, 2, 3, 1) for own in du]).flatten(1)  # [P, O 5 C]
        dw = (g.T @ flat).view(TAPS, outputs, TAPS, -1).permute(1, 3, 0, 2)
        return _gathered(b_t.T, dv) if into else None, dw, db[0], None


def _transformed(matrix: Tensor, x: Tensor) -> Tensor:
    """Transform columns: [P T, H], [N, C, H, W] -> [P T, N, W C]"""
    rows = x.permute(0, 2, 3, 1).flatten(2)
    out = x.new_empty(len(matrix), len(x), rows.shape[2])
    torch.bmm(matrix.expand(len(x), -1, -1), rows, out=out.transpose(0, 1))
    return out


def _gathered(matrix: Tensor, points: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    """Transform back: [OH, P T], P times [T, O, N, OW] in channels-last layout -> [N, O, OH, OW] in the same."""
    _, channels, images, width = points[0].shape
    rows = torch.stack([own.permute(0, 2, 3, 1) for own in points]).view(-1, images, width * channels)
    y = torch.bmm(matrix.expand(images, -1, -1), rows.transpose(0, 1))
    return y.view(images, -1, width, channels).permute(0, 3, 1, 2)
