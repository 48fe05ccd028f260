"""Triton kernels of a step on the scores, and of the aggregation tensor's magnitude."""

from __future__ import annotations

import triton
import triton.language as tl

from peermask.kernels.blocks_triton import own_block


@triton.jit
def gradient_kernel(g_ptr, w_ptr, z_ptr, out_ptr, g_stride, w_stride, P, BLOCK: tl.constexpr):
    a = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(z_ptr + a * P + i, mask=i < P, other=0.0)
    w = tl.load(w_ptr + a * w_stride + i, mask=i < P, other=0.0)
    g = tl.load(g_ptr + a * g_stride + i, mask=i < P, other=0.0)
    sign = tl.where(z > 0, 1.0, tl.where(z < 0, -1.0, 0.0))
    tl.store(out_ptr + a * P + i, sign * w * g, mask=i < P)


@triton.jit
def step_kernel(
    g_ptr, w_ptr, z_ptr, u_ptr, z_out_ptr, u_out_ptr, lr_ptr, momentum, decay, g_stride, w_stride, P,
    HAS_VELOCITY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    a = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(z_ptr + a * P + i, mask=i < P, other=0.0)
    w = tl.load(w_ptr + a * w_stride + i, mask=i < P, other=0.0)
    g = tl.load(g_ptr + a * g_stride + i, mask=i < P, other=0.0)
    u = tl.where(z > 0, 1.0, tl.where(z < 0, -1.0, 0.0)) * w * g
    if HAS_VELOCITY:
        u += momentum * tl.load(u_ptr + a * P + i, mask=i < P, other=0.0)
    tl.store(u_out_ptr + a * P + i, u, mask=i < P)
    tl.store(z_out_ptr + a * P + i, tl.fma(u + decay * z, -tl.load(lr_ptr), z), mask=i < P)


@triton.jit
def fine_tune_kernel(z_ptr, g_ptr, votes_ptr, voters_ptr, out_ptr, lr_ptr, P, BLOCK: tl.constexpr):
    a = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(z_ptr + a * P + i, mask=i < P, other=0.0)
    g = tl.load(g_ptr + a * P + i, mask=i < P, other=0.0)
    votes = tl.load(votes_ptr + a * P + i, mask=i < P, other=0).to(tl.float32)
    voters = tl.maximum(tl.load(voters_ptr + a), 1).to(tl.float32)
    # Rounded as the reference is: Triton's plain division is not exact, and torch subtracts a multiple at once.
    step = tl.div_rn(votes, voters) * g
    tl.store(out_ptr + a * P + i, tl.fma(step, -tl.load(lr_ptr), z), mask=i < P)


# Magnitude of the aggregation tensor: mean |z| by layer, then |z| + mean · n where z is not 0.


@triton.jit
def entries_of_block(blocks_ptr, IN_LINES: tl.constexpr, BLOCK: tl.constexpr):
    """A block's layer, the places of its entries, and where they end."""
    layer, start, end = own_block(blocks_ptr, IN_LINES)
    return layer, start + tl.arange(0, BLOCK), end


@triton.jit
def sum_kernel(z_ptr, blocks_ptr, sums_ptr, P, N, IN_LINES: tl.constexpr, BLOCK: tl.constexpr):
    _, i, end = entries_of_block(blocks_ptr, IN_LINES, BLOCK)
    a = tl.program_id(1).to(tl.int64)
    z = tl.load(z_ptr + a * P + i, mask=i < end, other=0.0)
    tl.store(sums_ptr + a * N + tl.program_id(0), tl.sum(tl.abs(z), 0))


@triton.jit
def layer_mean(sums_ptr, firsts_ptr, sizes_ptr, layer, SUMS: tl.constexpr):
    """mean|z| of a layer of one agent.

    Each block adds up its layer's sums itself: they are a few hundred, and a separate launch costs more. All
    add in the same order, so that the mean does not depend on how agents are chunked."""
    first = tl.load(firsts_ptr + layer)
    last = tl.load(firsts_ptr + layer + 1)
    total = tl.zeros([SUMS], tl.float32)
    for at in range(first, last, SUMS):
        n = at + tl.arange(0, SUMS)
        total += tl.load(sums_ptr + n, mask=n < last, other=0.0)
    return tl.sum(total, 0) / tl.load(sizes_ptr + layer)


@triton.jit
def magnitude_kernel(
    z_ptr, votes_ptr, voters_ptr, sums_ptr, blocks_ptr, firsts_ptr, sizes_ptr, out_ptr, gain, P, N,
    IN_LINES: tl.constexpr, BLOCK: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    layer, i, end = entries_of_block(blocks_ptr, IN_LINES, BLOCK)
    a = tl.program_id(1).to(tl.int64)
    z = tl.abs(tl.load(z_ptr + a * P + i, mask=i < end, other=0.0))
    votes = tl.load(votes_ptr + a * P + i, mask=i < end, other=0).to(tl.float32)
    voters = tl.maximum(tl.load(voters_ptr + a), 1).to(tl.float32)
    mean = layer_mean(sums_ptr + a * N, firsts_ptr, sizes_ptr, layer, SUMS)
    y = tl.where(z == 0, 0.0, z + mean * (gain * (votes / voters)))
    tl.store(out_ptr + a * P + i, y, mask=i < end)


@triton.jit
def pull_kernel(
    z_ptr, votes_ptr, voters_ptr, mask_ptr, sums_ptr, blocks_ptr, firsts_ptr, sizes_ptr, gains_ptr, out_ptr, P, N,
    IN_LINES: tl.constexpr, BLOCK: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    layer, i, end = entries_of_block(blocks_ptr, IN_LINES, BLOCK)
    a = tl.program_id(1).to(tl.int64)
    z = tl.load(z_ptr + a * P + i, mask=i < end, other=0.0)
    votes = tl.load(votes_ptr + a * P + i, mask=i < end, other=0).to(tl.float32)
    kept = tl.load(mask_ptr + a * P + i, mask=i < end, other=0).to(tl.float32)
    voters = tl.load(voters_ptr + a)
    mean = layer_mean(sums_ptr + a * N, firsts_ptr, sizes_ptr, layer, SUMS)
    strength = tl.where(voters > 0, tl.load(gains_ptr + a) * mean, 0.0)
    sign = tl.where(z > 0, 1.0, tl.where(z < 0, -1.0, 0.0))
    away = votes / tl.maximum(voters, 1).to(tl.float32) - kept
    tl.store(out_ptr + a * P + i, z + strength * sign * away, mask=i < end)


# A step in units of the scores: sums over layers first, then the step.


@triton.jit
def sums_of_step_kernel(
    g_ptr, w_ptr, z_ptr, u_ptr, u_out_ptr, sums_ptr, squares_ptr, blocks_ptr, momentum, g_stride, w_stride, P, N,
    HAS_VELOCITY: tl.constexpr, IN_LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """u = momentum u + sign(z) w g, and the sums of |z| and u² over a block."""
    _, i, end = entries_of_block(blocks_ptr, IN_LINES, BLOCK)
    a = tl.program_id(1).to(tl.int64)
    z = tl.load(z_ptr + a * P + i, mask=i < end, other=0.0)
    w = tl.load(w_ptr + a * w_stride + i, mask=i < end, other=0.0)
    g = tl.load(g_ptr + a * g_stride + i, mask=i < end, other=0.0)
    u = tl.where(z > 0, 1.0, tl.where(z < 0, -1.0, 0.0)) * w * g
    if HAS_VELOCITY:
        u += momentum * tl.load(u_ptr + a * P + i, mask=i < end, other=0.0)
    tl.store(u_out_ptr + a * P + i, u, mask=i < end)
    at = a * N + tl.program_id(0)
    tl.store(sums_ptr + at, tl.sum(tl.abs(z), 0))
    tl.store(squares_ptr + at, tl.sum(u * u, 0))


@triton.jit
def relative_step_kernel(
    z_ptr, u_ptr, sums_ptr, squares_ptr, blocks_ptr, firsts_ptr, sizes_ptr, z_out_ptr, direction_ptr, lr_ptr, decay,
    smallest, P, N, IN_LINES: tl.constexpr, BLOCK: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """û = u mean|z| / rms(u), and z − lr (û + decay z)."""
    layer, i, end = entries_of_block(blocks_ptr, IN_LINES, BLOCK)
    a = tl.program_id(1).to(tl.int64)
    z = tl.load(z_ptr + a * P + i, mask=i < end, other=0.0)
    u = tl.load(u_ptr + a * P + i, mask=i < end, other=0.0)
    mean = layer_mean(sums_ptr + a * N, firsts_ptr, sizes_ptr, layer, SUMS)
    rms = tl.sqrt(layer_mean(squares_ptr + a * N, firsts_ptr, sizes_ptr, layer, SUMS))
    direction = u * (mean / tl.maximum(rms, smallest))
    tl.store(direction_ptr + a * P + i, direction, mask=i < end)
    tl.store(z_out_ptr + a * P + i, tl.fma(direction + decay * z, -tl.load(lr_ptr), z), mask=i < end)
