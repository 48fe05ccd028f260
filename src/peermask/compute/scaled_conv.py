"""Convolutions of scaled float16 with each agent's own weights, as differentiable steps for all agents."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from peermask.compute.conv_block import MOST_ENTRIES, power_from
from peermask.compute.scaled import Scaled, scale_of, zeros

_LONGEST_PATCH = 256  # numbers that one output of a first layer sees
_PROGRAMS = 24  # that the gradient of an agent's weights is divided between, at least: not by how many agents there are


@dataclass(frozen=True)
class Conv:
    """A square convolution and the images [H, W] that it meets."""

    height: int
    width: int
    into: int
    out: int
    rows: int
    columns: int
    stride: int
    padding: int

    @property
    def sides(self) -> tuple[int, int]:
        """Sides of the output."""
        taps = (self.rows - 2 * self.padding, self.columns - 2 * self.padding)
        return (self.height - taps[0]) // self.stride + 1, (self.width - taps[1]) // self.stride + 1

    @property
    def patch(self) -> int:
        """Numbers that an output sees, up to a multiple of 32."""
        return -(-self.into * self.rows * self.columns // 32) * 32

    def fits(self, batch: int) -> bool:
        """Whether the kernels can do it."""
        return (
            self.into % 32 == 0
            and self.out % 32 == 0
            and (self.height % self.stride, self.width % self.stride) == (0, 0)
            and min(self.sides) > 0
            and batch * self.height * self.width * max(self.into, self.out) < MOST_ENTRIES
        )

    def fits_patches(self, batch: int) -> bool:
        """Whether a first layer can be computed from patches, whose numbers then are channels."""
        entries = batch * prod(self.sides) * max(self.patch, self.out)
        few = self.into % 32 != 0 and self.patch <= _LONGEST_PATCH
        return few and self.out % 32 == 0 and min(self.sides) > 0 and entries < MOST_ENTRIES

    @property
    def of_patches(self) -> Conv:
        return Conv(*self.sides, self.patch, self.out, 1, 1, 1, 0)


def scaled_conv(conv: Conv, x: Scaled, w: Tensor, bias: Tensor | None) -> Scaled:
    """x [A, B, H, W, C], w [A, O, C, R, S], bias [A, O]."""
    return Scaled(*_Conv.apply(conv, *x, w, bias))  # type: ignore[no-untyped-call]


def conv_of_patches(conv: Conv, x: Tensor, w: Tensor, bias: Tensor | None) -> Scaled:
    """The same of images x [A, B, C, H, W] of few channels, which get no gradient."""
    patches = _patches(conv, x)
    return Scaled(*_Conv.apply(conv.of_patches, *patches, w.flatten(2)[..., None, None], bias))  # type: ignore[no-untyped-call]


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, conv: Conv, x: Tensor, x_bound: Tensor, x_largest: Tensor, w: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, ...]:
        w_largest = torch.linalg.vector_norm(w.flatten(1), ord=torch.inf, dim=1)  # [A]
        half = halved(w, conv.into, w_largest)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x, x_bound, half, w_largest)
        ctx.conv, ctx.inner, ctx.biased = conv, w.shape[2], bias is not None
        return product(conv, Scaled(x, x_bound, x_largest), half, w_largest, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, x_bound, half, w_largest = ctx.saved_tensors
        dy = Scaled(*gradients)
        dx: tuple[Tensor | None, ...] = (None, None, None)
        if ctx.needs_input_grad[1]:
            dx = product(ctx.conv, dy, half, w_largest, None, turned=True)
        dw = weight_gradient(ctx.conv, x, x_bound, dy, ctx.inner)
        bias = dy.half.sum((1, 2, 3), dtype=torch.float32) / scale_of(dy.bound)[:, None] if ctx.biased else None
        return None, *dx, dw, bias


def halved(w: Tensor, padded: int, largest: Tensor) -> Tensor:
    """[A, O, C, R, S] floats to halves [A * O, R * S * padded]."""
    from peermask.kernels.scaled_conv_triton import halve_weights_kernel

    agents, out, into, rows, columns = w.shape
    w = w if w[0].is_contiguous() else w.contiguous()
    half = torch.empty(agents * out, rows * columns * padded, dtype=torch.float16, device=w.device)
    block = power_from(rows * columns * padded)
    halve_weights_kernel[(out, agents)](
        w, half, largest, w.stride(0), into, padded, rows * columns, block, num_warps=min(8, max(1, block // 512))
    )
    return half


def product(
    conv: Conv, x: Scaled, w: Tensor, w_largest: Tensor, bias: Tensor | None, *, turned: bool = False
) -> tuple[Tensor, ...]:
    """The result of scaled images [A, B, H, W, C]; turned, the gradient of those from the result's."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    from peermask.kernels.scaled_conv_triton import conv_kernel

    agents, batch = x.half.shape[:2]
    (into, out) = (conv.out, conv.into) if turned else (conv.into, conv.out)
    sides = (conv.height, conv.width) if turned else conv.sides
    y = torch.empty(agents, batch, *sides, out, dtype=torch.float16, device=x.half.device)
    bound, largest = zeros(2, agents, x.half.device)
    step, apart = (1, conv.stride) if turned else (conv.stride, 1)
    pixels = (sides[0] // apart, sides[1] // apart)  # of one remainder
    most, across, warps, stages = plan_product(out, turned=turned)
    bb, bh, bw = tile_of(most, *pixels, most)
    inner = 64 if into % 64 == 0 else 32
    tiles = -(-batch // bb) * -(-pixels[0] // bh) * -(-pixels[1] // bw)
    conv_kernel[(tiles * (out // across), apart * apart, agents)](
        TensorDescriptor.from_tensor(by_remainder(x.half, step), [bb, bh, 1, bw, inner]),
        TensorDescriptor.from_tensor(w, [inner, across] if turned else [across, inner]),
        w_largest if bias is None else bias.contiguous(), y, x.bound, x.largest, w_largest, bound,
        largest.view(torch.int32), batch, *pixels, into, out, conv.rows, conv.columns, conv.padding, conv.stride,
        turned, bias is not None, bb, bh, bw, across, inner, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y, bound, largest


def plan_product(out: int, *, turned: bool) -> tuple[int, int, int, int]:
    """Pixels and channels of a tile, warps and stages: measured best on an H200, as are those below."""
    if out % 128 == 0:
        return 256, 128, 8, 3 if turned else 4
    return 128, divisor(out, 64), 4, 4


def weight_gradient(conv: Conv, x: Tensor, x_bound: Tensor, dy: Scaled, inner: int) -> Tensor:
    """[A, O, inner, R, S], of the first channels."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    from peermask.kernels.scaled_conv_triton import join_kernel, weight_kernel

    agents, batch = x.shape[:2]
    most, high, wide, warps, stages = plan_weights(conv)
    sides = conv.sides
    bb, bh, bw = tile_of(most, *sides, batch & -batch)
    tiles = batch // bb * -(-sides[0] // bh) * -(-sides[1] // bw)
    taps = 3 if conv.columns == 3 else 1
    flat = bw == sides[1] and sides[0] % bh == 0 and (bb == 1 or bh == sides[0])
    blocks = conv.rows * conv.columns // taps * (conv.out // high) * (conv.into // wide)
    splits = min(tiles, max(1, _PROGRAMS // blocks))
    each = -(-tiles // splits)
    parts = torch.empty(agents, splits, conv.out, conv.rows, conv.columns, conv.into, device=x.device)
    weight_kernel[(blocks, splits, agents)](
        TensorDescriptor.from_tensor(by_remainder(x, conv.stride), [bb, bh, 1, bw, wide]),
        TensorDescriptor.from_tensor(dy.half.view(-1, conv.out), [bb * bh * bw, high])
        if flat
        else TensorDescriptor.from_tensor(by_remainder(dy.half, 1), [bb, bh, 1, bw, high]),
        parts, x_bound, dy.bound, batch, each, *sides, conv.into, conv.out, conv.rows, conv.columns, conv.padding,
        conv.stride, taps, flat, bb, bh, bw, high, wide, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    dw = torch.empty(agents, conv.out, inner, conv.rows, conv.columns, device=x.device)
    block = power_from(inner * conv.rows * conv.columns)
    join_kernel[(conv.out, agents)](
        parts, dw, splits, inner, conv.into, conv.rows * conv.columns, block, num_warps=min(8, max(1, block // 512))
    )
    return dw


def plan_weights(conv: Conv) -> tuple[int, int, int, int, int]:
    """Pixels, outputs and inputs of a tile, warps and stages."""
    return 64, divisor(conv.out, 128), divisor(conv.into, 128), 8, 4 if conv.out % 128 else 3


def _patches(conv: Conv, x: Tensor) -> Scaled:
    from peermask.kernels.scaled_conv_triton import patches_kernel

    agents, batch = x.shape[:2]
    bound = torch.linalg.vector_norm(x, ord=torch.inf, dim=(1, 2, 3, 4))  # [A]
    half = torch.empty(agents, batch, *conv.sides, conv.patch, dtype=torch.float16, device=x.device)
    block = 1024
    patches_kernel[(-(-half[0].numel() // block), agents)](
        x, half, bound, batch, *x.stride(), conv.height, conv.width, conv.into, *conv.sides, conv.rows, conv.columns,
        conv.padding, conv.stride, conv.patch, block,
    )  # fmt: skip
    return Scaled(half, bound, bound)


def by_remainder(x: Tensor, step: int) -> Tensor:
    """[A, B, H, W, C] -> [A * B, H / step, step, W / step, step * C], the same memory."""
    agents, batch, height, width, channels = x.shape
    return x.view(agents * batch, height // step, step, width // step, step * channels)


def tile_of(most: int, height: int, width: int, images: int) -> tuple[int, int, int]:
    """Images, rows and columns of a tile of so many pixels, each a power of two; a product takes no less than 16."""
    bw = min(most, power_from(width))
    bh = min(most // bw, power_from(height))
    bb = min(most // (bw * bh), images)
    return bb, max(bh, 16 // (bw * bb)), bw


def divisor(number: int, most: int) -> int:
    """The largest power of two that divides a number, up to `most`."""
    return min(most, number & -number)
