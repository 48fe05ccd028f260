"""Triton kernels of a step on the scores: by the loss, and by what neighbours agree on."""

from __future__ import annotations

import triton
import triton.language as tl


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
