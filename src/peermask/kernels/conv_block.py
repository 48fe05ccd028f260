"""Convolution, activation, local response norm and max-pooling as one differentiable step, for all agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from peermask.kernels import have_triton

Activation = Literal["none", "elu", "relu"]

_PATCH = 128  # the longest patch that a first layer takes in one piece, rows rounded up to powers of two
_SPLITS = 48  # parts a first layer's weight gradient is summed in
_MOST_ENTRIES = 2**31  # of an agent's batch in one layer: places are counted in 32 bits
_LARGEST_POOL = 15  # a place in a window is one byte, and 255 stands for none
_HALF_TOP = 2.0**14  # where the largest number is put in half precision; its range ends at 2^16


@dataclass(frozen=True)
class ConvBlock:
    """max-pool(norm(activation(x * w + bias))) of x [A, B, H, W, C], w [A, O, R, S, C], bias [A, O]."""

    padding: int
    activation: Activation
    norm_scale: float | None  # α / 4 of a window of four channels; None for no norm
    pool: int
    pool_stride: int
    pool_padding: int

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:  # -> [A, B, PH, PW, O]
        if not self.fits(x, w):
            return self.eager(x, w, bias)
        result: Tensor = _Fused.apply(x, w, bias, self)  # type: ignore[no-untyped-call]
        return result

    def fits(self, x: Tensor, w: Tensor) -> bool:
        """Whether the kernels can do it: on a GPU, with channels that fill a tile and numbers they can count to."""
        out, rows, columns, into = w.shape[1:]
        first = _power_from(rows) * _power_from(columns * into, 16) <= _PATCH and out <= 128 and not x.requires_grad
        inner = into % 32 == 0 and out % 32 == 0 and rows == columns  # the gradient of x is padded alike both ways
        tiled = _is_power(out) and 16 <= out <= 1024 and (first or inner)
        batch, height, width = (int(size) for size in x.shape[1:4])
        entries = batch * (height + 2 * self.padding) * (width + 2 * self.padding) * max(into, out)
        counted = entries < _MOST_ENTRIES and self.pool <= _LARGEST_POOL
        return x.device.type == "cuda" and have_triton() and tiled and counted

    def eager(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """The twin: the same by torch's own operations, agents as groups of one convolution."""
        agents, batch, height, width, _ = x.shape
        grouped = x.permute(1, 0, 4, 2, 3).reshape(batch, -1, height, width)  # [B, A * C, H, W]
        kernels = w.permute(0, 1, 4, 2, 3).flatten(0, 1)  # [A * O, C, R, S]
        y = F.conv2d(grouped, kernels, None if bias is None else bias.flatten(), padding=self.padding, groups=agents)
        if self.activation != "none":
            y = F.elu(y) if self.activation == "elu" else F.relu(y)
        y = y.view(batch, agents, -1, *y.shape[2:])  # [B, A, O, OH, OW]
        if self.norm_scale is not None:
            y = F.local_response_norm(y.flatten(0, 1), 4, alpha=4 * self.norm_scale).view_as(y)
        y = F.max_pool2d(y.flatten(1, 2), self.pool, self.pool_stride, self.pool_padding)
        return y.view(batch, agents, -1, *y.shape[2:]).permute(1, 0, 3, 4, 2)  # [A, B, PH, PW, O]

    def pooled(self, side: int) -> int:
        return (side + 2 * self.pool_padding - self.pool) // self.pool_stride + 1


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, block: ConvBlock) -> Tensor:
        x, w = x.contiguous(), w.contiguous()
        e = convolve(x, w, bias, block.padding, block.activation)
        y, where = norm_and_pool(e, block)
        ctx.save_for_backward(x, w, e, where)
        ctx.block, ctx.biased = block, bias is not None
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        x, w, e, where = ctx.saved_tensors
        block: ConvBlock = ctx.block
        dy = norm_and_pool_gradient(gradients[0].contiguous(), e, where, block)  # [A, B, OH, OW, O], before activation
        dw = weight_gradient(x, dy, w.shape, block.padding)
        dbias = dy.sum((1, 2, 3)) if ctx.biased else None
        dx = None
        if ctx.needs_input_grad[0]:
            # The same product with the kernel turned round and its channels swapped.
            turned = w.flip(2, 3).permute(0, 4, 2, 3, 1).contiguous()  # [A, C, R, S, O]
            dx = convolve(dy, turned, None, w.shape[2] - 1 - block.padding, "none")
        return dx, dw, dbias, None


def convolve(x: Tensor, w: Tensor, bias: Tensor | None, padding: int, activation: Activation) -> Tensor:
    from peermask.kernels.conv_triton import ACTIVATIONS, forward_kernel, patch_forward_kernel

    agents, batch, height, width, into = x.shape
    out, rows, columns = w.shape[1:4]
    oh, ow = height + 2 * padding - rows + 1, width + 2 * padding - columns + 1
    y = x.new_empty(agents, batch, oh, ow, out)
    pixels = batch * oh * ow
    bias_or_any = w if bias is None else bias.contiguous()
    shape = (into, out, rows, columns)
    end = (bias is not None, ACTIVATIONS[activation])
    if into % 32:
        tile = 64
        x = _padded(x, padding)
        where = (x, w, bias_or_any, y, batch, x.shape[2], x.shape[3], oh, ow, pixels)
        row = _power_from(columns * into, 16)
        patch_forward_kernel[(-(-pixels // tile), agents)](*where, *shape, *end, tile, row, num_warps=4)
    else:
        where = (x, w, bias_or_any, y, batch, height, width, oh, ow, pixels)
        tile, across = 128, min(128, out)
        grid = (-(-pixels // tile), out // across, agents)
        forward_kernel[grid](*where, *shape, padding, *end, tile, across, 32, num_warps=8, num_stages=3)
    return y


def weight_gradient(x: Tensor, dy: Tensor, shape: torch.Size, padding: int) -> Tensor:
    from peermask.kernels.conv_triton import patch_weight_kernel, weight_kernel

    agents, batch, height, width, into = x.shape
    oh, ow, out = dy.shape[2:]
    rows, columns = shape[2:4]
    pixels = batch * oh * ow
    scales = (_half_scale(x), _half_scale(dy))
    if into % 32:
        x = _padded(x, padding)
        size = (batch, x.shape[2], x.shape[3], oh, ow, pixels)
        row, high = _power_from(columns * into, 16), _power_from(rows)
        parts = x.new_empty(agents, _SPLITS, out, high, row)
        each = -(-pixels // _SPLITS)
        patch_weight_kernel[(_SPLITS, agents)](
            x, dy, parts, *scales, *size, each, into, out, rows, columns, 64, row, high, num_warps=8, num_stages=3
        )
        return parts.sum(1)[:, :, :rows, : columns * into].reshape(shape)
    common = (*scales, batch, height, width, oh, ow, pixels)
    dw = x.new_empty(shape)
    tile, across = min(128, out), 64 if into % 64 == 0 else 32
    grid = (rows * columns * (into // across), out // tile, agents)
    weight_kernel[grid](
        x, dy, dw, *common, into, out, rows, columns, padding, tile, across, 32, num_warps=4, num_stages=3
    )
    return dw


def norm_and_pool(e: Tensor, block: ConvBlock) -> tuple[Tensor, Tensor]:
    from peermask.kernels.pool_triton import forward_kernel

    agents, batch, height, width, channels = e.shape
    ph, pw = block.pooled(height), block.pooled(width)
    y = e.new_empty(agents, batch, ph, pw, channels)
    where = torch.empty(y.shape, dtype=torch.uint8, device=e.device)
    pixels = agents * batch * ph * pw
    tile, warps = max(1, 256 // channels), 4  # measured best on an H200, as are those below
    forward_kernel[(-(-pixels // tile),)](
        e, y, where, pixels, height, width, ph, pw, block.norm_scale or 0.0, channels, block.norm_scale is not None,
        block.pool, block.pool_stride, block.pool_padding, tile, num_warps=warps,
    )  # fmt: skip
    return y, where


def norm_and_pool_gradient(dy: Tensor, e: Tensor, where: Tensor, block: ConvBlock) -> Tensor:
    from peermask.kernels.conv_triton import ACTIVATIONS
    from peermask.kernels.pool_triton import backward_kernel

    agents, batch, height, width, channels = e.shape
    dx = torch.empty_like(e)
    pixels = agents * batch * height * width
    tile, warps = max(1, 512 // channels), 4
    backward_kernel[(-(-pixels // tile),)](
        e, dy, where, dx, pixels, height, width, where.shape[2], where.shape[3], block.norm_scale or 0.0, channels,
        ACTIVATIONS[block.activation], block.norm_scale is not None, block.pool, block.pool_stride, block.pool_padding,
        -(-block.pool // block.pool_stride), tile, num_warps=warps,
    )  # fmt: skip
    return dx


def _half_scale(x: Tensor) -> Tensor:
    """The power of two that puts each agent's largest number near the top of half precision."""
    largest = torch.linalg.vector_norm(x.flatten(1), ord=torch.inf, dim=1)  # [A]
    exponent = torch.floor(torch.log2(_HALF_TOP / largest.clamp(min=2.0**-60)))
    return torch.exp2(exponent.clamp(-60, 60))


def _padded(x: Tensor, padding: int) -> Tensor:
    return F.pad(x, (0, 0, padding, padding, padding, padding)) if padding else x


def _power_from(number: int, least: int = 1) -> int:
    """The smallest power of two that is no less than either."""
    return max(least, 1 << (number - 1).bit_length())


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0
