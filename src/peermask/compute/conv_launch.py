"""The steps of a convolution block, forward and backward, as launches of kernels.

Scaled float16 tensors come with a bound of each agent's numbers, [A], which gives their scale (half_triton.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from peermask.compute.conv_block import BlockShape, fills_tiles, power_from

_SPLITS = 24  # parts that gradients of a first layer's weights, and of biases, are summed in


def halved_images(x: Tensor, largest: Tensor, shape: BlockShape) -> Tensor:
    """[A, B, H, W, C] floats to halves; few channels with a margin and up to a power of two."""
    from peermask.kernels.half_triton import images_kernel

    agents, batch, height, width, into = x.shape
    sides = (height + 2 * shape.margin, width + 2 * shape.margin)
    half = torch.empty(agents, batch, *sides, shape.channels, dtype=torch.float16, device=x.device)
    tile = 1024
    images_kernel[(-(-half[0].numel() // tile), agents)](
        x, half, largest, batch, *x.stride(), height, width, into, shape.channels, shape.margin, tile
    )
    return half


def halved_weights(
    shape: BlockShape, w: Tensor, bound: Tensor | None = None, bias: Tensor | None = None, reach: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """[A, O, C, R, S] floats to halves [A, O, R, S, channels], or turned round [A, C, R, S, O]; and the inverse of each
    row's scale, [A, O] or [A, C]. Not turned, where it is given a place to note how far its products reach [A]."""
    from peermask.kernels.half_triton import weights_kernel

    agents, out, into, rows, columns = w.shape
    taps, turned = rows * columns, reach is None
    w = w if w[0].is_contiguous() else w.contiguous()
    heads, inner, strides = (into, out, (taps, into * taps)) if turned else (out, into, (into * taps, taps))
    padded = inner if turned else shape.channels
    half = torch.empty(agents, heads, rows, columns, padded, dtype=torch.float16, device=w.device)
    inverse = torch.empty(agents, heads, device=w.device)
    block = power_from(taps * padded)
    weights_kernel[(heads, agents)](
        w, half, inverse, inverse if bias is None else bias, inverse if bound is None else bound,
        inverse if reach is None else reach.view(torch.int32), w.stride(0), *strides, inner, padded, taps, turned,
        bias is not None, block, num_warps=min(8, max(1, block // 512)),
    )  # fmt: skip
    return half, inverse


def convolved(
    shape: BlockShape, x: Tensor, bound: Tensor, w: Tensor, bias: Tensor | None, largest: Tensor, reach: Tensor
) -> Tensor:
    """e [A, B, OH, OW, O], activated, as halves; notes its largest of each agent, and what bounds it beforehand."""
    from peermask.kernels.conv_triton import ACTIVATIONS, patch_forward_kernel

    bias = None if bias is None else bias.contiguous()
    half, inverse = halved_weights(shape, w, bound, bias, reach)
    agents, batch, height, width, _ = x.shape
    oh, ow = shape.convolved
    y = torch.empty(agents, batch, oh, ow, shape.out, dtype=torch.float16, device=x.device)
    operands = (x, bound, half, inverse, half if bias is None else bias, y, largest.view(torch.int32), reach)
    kernel = (shape.channels, shape.out, shape.rows, shape.columns)
    end = (bias is not None, ACTIVATIONS[shape.block.activation])
    if not shape.by_patches:
        _product(operands, (height, width, oh, ow), kernel, shape.block.padding, 1, (*end, True))
        return y
    tile, each = 64, 16
    across = power_from(ow)
    across = across if across <= tile and 8 * ow >= 7 * across else 0  # else too many pixels behind the ends of rows
    tiles = batch * -(-oh // (tile // across)) if across else -(-batch * oh * ow // tile)
    patch_forward_kernel[(-(-tiles // each), agents)](
        *operands, batch, each, height, width, oh, ow, *kernel, *end, tile, shape.patch, across,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return y


def input_gradient(shape: BlockShape, de: Tensor, bound: Tensor, w: Tensor, largest: Tensor) -> Tensor:
    """The same product with the kernel turned round and its channels swapped; notes its largest of each agent."""
    half, inverse = halved_weights(shape, w)
    dx = torch.empty(*de.shape[:2], shape.height, shape.width, shape.into, device=de.device)
    operands = (de, bound, half, inverse, half, dx, largest.view(torch.int32), bound)
    kernel = (shape.out, shape.into, shape.rows, shape.columns)
    padding = shape.rows - 1 - shape.block.padding
    sizes = (*shape.convolved, shape.height, shape.width)
    _product(operands, sizes, kernel, padding, shape.block.growth, (False, 0, False))
    return dx


def _product(
    operands: tuple[Tensor, ...],
    sizes: tuple[int, int, int, int],
    kernel: tuple[int, int, int, int],
    padding: int,
    growth: int,
    end: tuple[bool, int, bool],
) -> None:
    from peermask.kernels.conv_triton import forward_kernel

    agents, batch = operands[0].shape[:2]
    into, out = kernel[:2]
    tile, across, step = 128, min(128, out), 64 if into % 64 == 0 else 32
    warps, stages = 4, 3  # measured best on an H200, as are those below
    if out % 256 == 0 and step == 64:
        across, warps, stages = 256, 8, 4
    pixels = sizes[2] * sizes[3]
    apart = fills_tiles(batch, tile)
    tiles = pixels * -(-batch // tile) if apart else -(-batch * pixels // tile)
    forward_kernel[(tiles, out // across, agents)](
        *operands, batch, *sizes, *kernel, padding, growth, *end, apart, tile, across, step,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


def weight_gradient(shape: BlockShape, x: Tensor, x_bound: Tensor, de: Tensor, bound: Tensor) -> Tensor:
    """The gradient of weights, [A, O, C, R, S]."""
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
    step, stages = (32, 4) if across == 128 else (64, 3)
    grid = (rows * columns * (channels // across), out // tile, agents)
    weight_kernel[grid](
        *operands, dw, batch, *sizes, shape.block.padding, growth, tile, across, step, num_warps=4, num_stages=stages
    )
    return dw.permute(0, 1, 4, 2, 3)


def bias_gradient(shape: BlockShape, de: Tensor, bound: Tensor) -> Tensor:
    """The gradient of biases, [A, O]."""
    from peermask.kernels.conv_triton import bias_kernel

    agents, pixels = len(de), de[0].numel() // shape.out
    parts = torch.empty(agents, _SPLITS, shape.out, device=de.device)
    bias_kernel[(_SPLITS, agents)](
        de, bound, parts, pixels, -(-pixels // _SPLITS), shape.out, shape.block.growth, max(1, 2048 // shape.out)
    )
    return parts.sum(1)


def pooled(
    shape: BlockShape, e: Tensor, reach: Tensor, largest: Tensor, *, half: bool, places: bool = True
) -> tuple[Tensor, Tensor]:
    """y [A, B, PH, PW, O], as scaled halves or floats, and where in its window each maximum was (if `places`)."""
    from peermask.kernels.pool_triton import pool_kernel

    agents, batch, height, width, channels = e.shape
    block, (ph, pw) = shape.block, shape.pooled
    y = torch.empty(agents, batch, ph, pw, channels, dtype=torch.float16 if half else torch.float32, device=e.device)
    where = torch.empty(y.shape if places else (4,), dtype=torch.uint8, device=e.device)
    # A warp for a word of each lane needs no memory to move words; measured best on an H200, as are those below.
    tile, warps = (128 // channels, 1) if channels <= 128 else (max(1, 1024 // channels), 4)
    pool_kernel[(-(-batch * pw // tile), agents)](
        e.view(torch.int64), e.view(torch.int32), reach, largest, y.view(torch.int64) if half else y,
        where.view(torch.int32), batch, block.norm_scale or 0.0, height, width, ph, pw, channels,
        block.norm_scale is not None, block.pool, block.pool_stride, block.pool_padding, half, places, tile,
        num_warps=warps,
    )  # fmt: skip
    return y, where


def pooled_gradient(shape: BlockShape, dy: Tensor, bound: Tensor, e: Tensor, reach: Tensor, where: Tensor) -> Tensor:
    """Gradient before the activation, as scaled halves."""
    from peermask.kernels.conv_triton import ACTIVATIONS
    from peermask.kernels.pool_triton import pool_back_kernel

    agents, batch, height, width, channels = e.shape
    block = shape.block
    de = torch.empty(e.shape, dtype=torch.float16, device=e.device)
    tile, warps = max(1, 128 // channels), 1
    pool_back_kernel[(-(-batch * width // tile), agents)](
        e.view(torch.int64), e.view(torch.int32), reach, dy.view(torch.int64), bound, where.view(torch.int32),
        de.view(torch.int64), batch, block.norm_scale or 0.0, height, width, *shape.pooled, channels,
        ACTIVATIONS[block.activation], block.norm_scale is not None, block.pool, block.pool_stride, block.pool_padding,
        block.cover, block.growth, tile, num_warps=warps,
    )  # fmt: skip
    return de
