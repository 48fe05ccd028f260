"""A chain of convolution blocks as one differentiable step of fused kernels, for all agents.

Activations pass from block to block as scaled halves (half_triton.py), gradients come back the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from peermask.kernels.conv_block import ConvBlock

_PATCH = 128  # the longest patch that a first layer takes in one piece
_SPLITS = 24  # parts a first layer's weight gradient is summed in
_MOST_ENTRIES = 2**31  # of an agent's batch in one layer: places are counted in 32 bits
_LARGEST_POOL = 15  # a place in a window is one byte, and 255 stands for none


@dataclass(frozen=True)
class Shape:
    """A block and the sizes that it meets."""

    block: ConvBlock
    height: int
    width: int
    into: int
    out: int
    rows: int
    columns: int

    @cached_property
    def convolved(self) -> tuple[int, int]:
        return self.block.convolved(self.height, self.rows), self.block.convolved(self.width, self.columns)

    @cached_property
    def pooled(self) -> tuple[int, int]:
        height, width = self.convolved
        return self.block.pooled(height), self.block.pooled(width)

    @property
    def by_patches(self) -> bool:
        """Few channels, as images have: a whole patch fits into one step of the product."""
        return self.into % 32 != 0

    @property
    def channels(self) -> int:
        """Channels as they are stored: those of images up to a power of two, so that pixels can be read whole."""
        return _power_from(self.into) if self.by_patches else self.into

    @property
    def patch(self) -> int:
        return _power_from(self.rows * self.columns * self.channels, 16)

    def fits(self, batch: int, *, first: bool) -> bool:
        """Whether the kernels can do it: channels that fill a tile, and numbers they can count to."""
        square = self.rows == self.columns  # the gradient of the input is padded alike both ways
        patches = first and self.patch <= _PATCH and self.out <= 128
        inner = not self.by_patches and self.out % 32 == 0 and square
        tiled = _is_power(self.out) and 16 <= self.out <= 1024 and (patches if self.by_patches else inner)
        padding = 2 * self.block.padding
        entries = batch * (self.height + padding) * (self.width + padding) * max(self.channels, self.out)
        return tiled and entries < _MOST_ENTRIES and self.block.pool <= _LARGEST_POOL and min(self.pooled) > 0


def shapes_of(
    blocks: Sequence[ConvBlock], height: int, width: int, kernels: Iterable[Sequence[int]]
) -> tuple[Shape, ...]:
    """Of images through all blocks, with kernels [O, C, R, S]."""
    shapes = []
    for block, (out, into, rows, columns) in zip(blocks, kernels, strict=True):
        shapes.append(Shape(block, height, width, into, out, rows, columns))
        height, width = shapes[-1].pooled
    return tuple(shapes)


def trunk_fits(shapes: Sequence[Shape], batch: int) -> bool:
    """Whether the kernels can compute the whole chain, where there is a GPU."""
    return all(shape.fits(batch, first=place == 0) for place, shape in enumerate(shapes))


def run_trunk(
    shapes: tuple[Shape, ...], x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> Tensor:
    """x [A, B, H, W, C], weights [A, O, C, R, S] and biases [A, O] of each block -> [A, B, PH, PW, O] of the last."""
    result: Tensor = _Trunk.apply(shapes, x, *weights, *biases)  # type: ignore[no-untyped-call]
    return result


class _Trunk(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shapes: tuple[Shape, ...], x: Tensor, *parameters: Tensor | None) -> Tensor:
        weights, biases = parameters[: len(shapes)], parameters[len(shapes) :]
        agents = len(x)
        largest = _zeros(shapes, agents, x.device)  # of each block's activations
        bound = torch.linalg.vector_norm(x, ord=torch.inf, dim=(1, 2, 3, 4))  # [A] of the block's input
        x = _halved_images(x, bound, shapes[0])
        kept: list[Tensor] = []
        for place, (shape, w, bias) in enumerate(zip(shapes, weights, biases, strict=True)):
            assert w is not None
            e = _convolved(shape, x, bound, w, bias, largest[place])
            y, where = _pooled(shape, e, largest[place], half=place + 1 < len(shapes))
            kept += [x, bound, w, e, where]
            x, bound = y, largest[place]
        ctx.save_for_backward(*kept)
        ctx.shapes, ctx.biased = shapes, [bias is not None for bias in biases]
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        shapes: tuple[Shape, ...] = ctx.shapes
        kept = ctx.saved_tensors
        dy = gradients[0].contiguous()
        bound = torch.linalg.vector_norm(dy.flatten(1), ord=torch.inf, dim=1)  # [A] of dy
        largest = _zeros(shapes, len(dy), dy.device)
        weights: list[Tensor | None] = [None] * len(shapes)
        biases: list[Tensor | None] = [None] * len(shapes)
        for place in reversed(range(len(shapes))):
            shape = shapes[place]
            x, x_bound, w, e, where = kept[5 * place : 5 * place + 5]
            de = _pooled_gradient(shape, dy, bound, e, where)  # [A, B, OH, OW, O] halves
            weights[place] = _weight_gradient(shape, x, x_bound, de, bound)
            if ctx.biased[place]:
                biases[place] = _bias_gradient(shape, de, bound)
            if place:
                dy = _input_gradient(shape, de, bound, w, largest[place])
                bound = largest[place]
        return None, None, *weights, *biases


def trunk_trials(
    shapes: tuple[Shape, ...], x: Tensor, weights: Sequence[Tensor], biased: Sequence[bool]
) -> list[Callable[[], object]]:
    """Every kernel once, so that they can be compiled side by side; [A, B, H, W, C] and [A, O, C, R, S] as in a run."""
    (agents, batch), device = x.shape[:2], x.device
    bound = torch.ones(agents, device=device)
    first = _halved_images(x, bound, shapes[0])
    trials: list[Callable[[], object]] = []
    for place, (shape, w, bias) in enumerate(zip(shapes, weights, biased, strict=True)):
        sides = (shape.height, shape.width, shape.into)
        inputs = torch.zeros(agents, batch, *sides, dtype=torch.float16, device=device) if place else first
        e = torch.zeros(agents, batch, *shape.convolved, shape.out, device=device)
        dy = torch.zeros(agents, batch, *shape.pooled, shape.out, device=device)
        where, de = dy.to(torch.uint8), e.half()
        added = torch.zeros(agents, shape.out, device=device) if bias else None
        trials += [
            partial(_convolved, shape, inputs, bound, w, added, torch.zeros_like(bound)),
            partial(_pooled, shape, e, bound, half=place + 1 < len(shapes)),
            partial(_pooled_gradient, shape, dy, bound, e, where),
            partial(_weight_gradient, shape, inputs, bound, de, bound),
        ]
        if place:
            trials.append(partial(_input_gradient, shape, de, bound, w, torch.zeros_like(bound)))
    return trials


def _zeros(shapes: Sequence[Shape], agents: int, device: torch.device) -> Tensor:
    """[blocks, A], each row where a kernel compiled for aligned memory can take it."""
    return torch.zeros(len(shapes), -(-agents // 4) * 4, device=device)[:, :agents]


def _halved_images(x: Tensor, largest: Tensor, shape: Shape) -> Tensor:
    """[A, B, H, W, C] floats to halves; few channels with a margin and up to a power of two."""
    from peermask.kernels.half_triton import images_kernel

    padding = shape.block.padding if shape.by_patches else 0
    agents, batch, height, width, into = x.shape
    sides = (height + 2 * padding, width + 2 * padding)
    half = torch.empty(agents, batch, *sides, shape.channels, dtype=torch.float16, device=x.device)
    tile = 1024
    images_kernel[(-(-half[0].numel() // tile), agents)](
        x, half, largest, batch, *x.stride(), height, width, into, shape.channels, padding, tile
    )
    return half


def _halved_weights(w: Tensor, channels: int, *, turned: bool) -> tuple[Tensor, Tensor]:
    """[A, O, C, R, S] floats to halves [A, O, R, S, channels], or turned round [A, C, R, S, O]; and the inverse of each
    row's scale, [A, O] or [A, C]."""
    from peermask.kernels.half_triton import weights_kernel

    agents, out, into, rows, columns = w.shape
    taps = rows * columns
    w = w if w[0].is_contiguous() else w.contiguous()
    heads, inner, strides = (into, out, (taps, into * taps)) if turned else (out, into, (into * taps, taps))
    padded = inner if turned else channels
    half = torch.empty(agents, heads, rows, columns, padded, dtype=torch.float16, device=w.device)
    inverse = torch.empty(agents, heads, device=w.device)
    block = _power_from(taps * padded)
    weights_kernel[(heads, agents)](
        w,
        half,
        inverse,
        w.stride(0),
        *strides,
        inner,
        padded,
        taps,
        turned,
        block,
        num_warps=min(8, max(1, block // 512)),
    )
    return half, inverse


def _convolved(shape: Shape, x: Tensor, bound: Tensor, w: Tensor, bias: Tensor | None, largest: Tensor) -> Tensor:
    """e [A, B, OH, OW, O], activated; notes its largest of each agent."""
    from peermask.kernels.conv_triton import ACTIVATIONS, patch_forward_kernel

    half, inverse = _halved_weights(w, shape.channels, turned=False)
    agents, batch, height, width, _ = x.shape
    oh, ow = shape.convolved
    y = torch.empty(agents, batch, oh, ow, shape.out, device=x.device)
    operands = (x, bound, half, inverse, half if bias is None else bias.contiguous(), y, largest.view(torch.int32))
    kernel = (shape.channels, shape.out, shape.rows, shape.columns)
    end = (bias is not None, ACTIVATIONS[shape.block.activation])
    if not shape.by_patches:
        _product(operands, (height, width, oh, ow), kernel, shape.block.padding, 1, end)
        return y
    tile = 64
    patch_forward_kernel[(-(-batch * oh * ow // tile), agents)](
        *operands, batch, height, width, oh, ow, *kernel, *end, tile, shape.patch, num_warps=4
    )
    return y


def _input_gradient(shape: Shape, de: Tensor, bound: Tensor, w: Tensor, largest: Tensor) -> Tensor:
    """The same product with the kernel turned round and its channels swapped; notes its largest of each agent."""
    half, inverse = _halved_weights(w, shape.into, turned=True)
    dx = torch.empty(*de.shape[:2], shape.height, shape.width, shape.into, device=de.device)
    operands = (de, bound, half, inverse, half, dx, largest.view(torch.int32))
    kernel = (shape.out, shape.into, shape.rows, shape.columns)
    padding = shape.rows - 1 - shape.block.padding
    _product(operands, (*shape.convolved, shape.height, shape.width), kernel, padding, shape.block.growth, (False, 0))
    return dx


def _product(
    operands: tuple[Tensor, ...],
    sizes: tuple[int, int, int, int],
    kernel: tuple[int, int, int, int],
    padding: int,
    growth: int,
    end: tuple[bool, int],
) -> None:
    from peermask.kernels.conv_triton import forward_kernel

    agents, batch = operands[0].shape[:2]
    into, out = kernel[:2]
    tile, across, step = 128, min(128, out), 64 if into % 64 == 0 else 32
    grid = (-(-batch * sizes[2] * sizes[3] // tile), out // across, agents)
    forward_kernel[grid](
        *operands, batch, *sizes, *kernel, padding, growth, *end, tile, across, step, num_warps=4, num_stages=3
    )


def _weight_gradient(shape: Shape, x: Tensor, x_bound: Tensor, de: Tensor, bound: Tensor) -> Tensor:
    """[A, O, C, R, S]."""
    from peermask.kernels.conv_triton import patch_weight_kernel, weight_kernel

    agents, batch, height, width, channels = x.shape
    oh, ow, out = de.shape[2:]
    rows, columns = shape.rows, shape.columns
    operands, growth = (x, x_bound, de, bound), shape.block.growth
    sizes = (height, width, oh, ow, channels, out, rows, columns)
    if shape.by_patches:
        parts = torch.empty(agents, _SPLITS, out, shape.patch, device=x.device)
        each = -(-batch * oh * ow // _SPLITS)
        patch_weight_kernel[(_SPLITS, agents)](
            *operands, parts, batch, each, *sizes, growth, 64, shape.patch, num_warps=8, num_stages=3
        )
        dw = parts.sum(1)[:, :, : rows * columns * channels].view(agents, out, rows, columns, channels)
        return dw[..., : shape.into].permute(0, 1, 4, 2, 3)
    dw = torch.empty(agents, out, rows, columns, channels, device=x.device)
    tile, across = min(128, out), next(width for width in (128, 64, 32) if channels % width == 0)
    grid = (rows * columns * (channels // across), out // tile, agents)
    weight_kernel[grid](
        *operands, dw, batch, *sizes, shape.block.padding, growth, tile, across, 32, num_warps=4, num_stages=4
    )
    return dw.permute(0, 1, 4, 2, 3)


def _bias_gradient(shape: Shape, de: Tensor, bound: Tensor) -> Tensor:
    """[A, O]."""
    exponent = torch.frexp(bound * shape.block.growth).exponent.clamp(-59, 61)  # as half_scale takes it, and one more
    return torch.ldexp(de.sum((1, 2, 3), dtype=torch.float32), (exponent - 14)[:, None])


def _pooled(shape: Shape, e: Tensor, largest: Tensor, *, half: bool) -> tuple[Tensor, Tensor]:
    """y [A, B, PH, PW, O], as scaled halves or floats, and where in its window each maximum was."""
    from peermask.kernels.pool_triton import forward_kernel

    agents, batch, height, width, channels = e.shape
    block, (ph, pw) = shape.block, shape.pooled
    y = torch.empty(agents, batch, ph, pw, channels, dtype=torch.float16 if half else torch.float32, device=e.device)
    where = torch.empty(y.shape, dtype=torch.uint8, device=e.device)
    tile, warps = max(1, 256 // channels), 4  # measured best on an H200, as are those below
    forward_kernel[(-(-batch * ph * pw // tile), agents)](
        e, largest, y, where, batch, block.norm_scale or 0.0, height, width, ph, pw, channels,
        block.norm_scale is not None, block.pool, block.pool_stride, block.pool_padding, half, tile, num_warps=warps,
    )  # fmt: skip
    return y, where


def _pooled_gradient(shape: Shape, dy: Tensor, bound: Tensor, e: Tensor, where: Tensor) -> Tensor:
    """Before the activation, as scaled halves."""
    from peermask.kernels.conv_triton import ACTIVATIONS
    from peermask.kernels.pool_triton import backward_kernel

    agents, batch, height, width, channels = e.shape
    block = shape.block
    de = torch.empty(e.shape, dtype=torch.float16, device=e.device)
    tile, warps = max(1, 1024 // channels), 4
    backward_kernel[(-(-batch * height * width // tile), agents)](
        e, dy, bound, where, de, batch, block.norm_scale or 0.0, height, width, *shape.pooled, channels,
        ACTIVATIONS[block.activation], block.norm_scale is not None, block.pool, block.pool_stride, block.pool_padding,
        block.cover, block.growth, tile, num_warps=warps,
    )  # fmt: skip
    return de


def _power_from(number: int, least: int = 1) -> int:
    """The smallest power of two that is no less than either."""
    return max(least, 1 << (number - 1).bit_length())


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0
