"""Triton kernels of local response norm and max-pooling in one, forward and backward.

One by one they are bound by memory and made up most of a training step; fused, each activation comes from memory once
in either direction, and only the pooled result and one byte of where the maximum was are written.
The input e [A, B, H, W, C] is what an activation function gave, as scaled halves; the backward pass goes through that
function too, since its slope can be told from its value. Programs run over an agent's pixels, q, and all its channels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from peermask.kernels.half_triton import half_scale


@triton.jit
def channel(e_ptr, inverse, base, c, shift: tl.constexpr, inside, C: tl.constexpr):
    """e at channel c + shift; 0 outside the agent's channels, as the norm pads."""
    near = c + shift
    ok = inside[:, None] & (near >= 0)[None, :] & (near < C)[None, :]
    return tl.load(e_ptr + base[:, None] + near[None, :], mask=ok, other=0.0).to(tl.float32) * inverse


@triton.jit
def moved(x, shift: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """x [BLOCK, C] at channel c + shift; 0 outside."""
    near = tl.arange(0, C) + shift
    ok = (near >= 0) & (near < C)
    at = tl.broadcast_to(tl.where(ok, near, 0)[None, :], [BLOCK, C])
    return tl.where(ok[None, :], tl.gather(x, at, 1), 0.0)


@triton.jit(do_not_specialize=["B"])
def pool_kernel(
    e_ptr, reach_ptr, largest_ptr, y_ptr, where_ptr, B, scale,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, C: tl.constexpr, NORM: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Neither step makes a number larger, so e's largest serves to scale the result to halves, where HALF is on."""
    a = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # output pixels
    pixels = B * (PH * PW)
    live = q < pixels
    pw = q % PW
    ph = (q // PW) % PH
    image = q // (PW * PH)
    c = tl.arange(0, C)
    e_ptr += a * B * (H * W * C)
    inverse = 1.0 / half_scale(tl.load(reach_ptr + a))
    best = tl.full([BLOCK, C], float("-inf"), tl.float32)
    arg = tl.zeros([BLOCK, C], tl.int32)
    for i in tl.static_range(K * K):
        h = ph * S - PAD + i // K
        w = pw * S - PAD + i % K
        inside = live & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        base = ((image * H + h) * W + w) * C
        e = channel(e_ptr, inverse, base, c, 0, inside, C)
        if NORM:
            e1 = channel(e_ptr, inverse, base, c, -2, inside, C)
            e2 = channel(e_ptr, inverse, base, c, -1, inside, C)
            e3 = channel(e_ptr, inverse, base, c, 1, inside, C)
            r = tl.rsqrt(1.0 + scale * (e1 * e1 + e2 * e2 + e * e + e3 * e3))
            e = e * r * tl.sqrt(r)  # u^-0.75
        take = inside[:, None] & ((e > best) | (e != e))  # NaN is the maximum, as in torch
        best = tl.where(take, e, best)
        arg = tl.where(take, i, arg)
    out = a * pixels * C + (q * C)[:, None] + c[None, :]
    if HALF:
        best *= half_scale(tl.load(largest_ptr + a))
    tl.store(y_ptr + out, best.to(y_ptr.dtype.element_ty), mask=live[:, None])
    tl.store(where_ptr + out, arg.to(tl.uint8), mask=live[:, None])


@triton.jit(do_not_specialize=["B"])
def pool_back_kernel(
    e_ptr, reach_ptr, dy_ptr, largest_ptr, where_ptr, dx_ptr, B, scale,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, C: tl.constexpr,
    ACT: tl.constexpr, NORM: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr,
    COVER: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """∂ℓ/∂x before the activation, as halves: it is no more than BOUND times the largest of dy."""
    a = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # input pixels
    pixels = B * (H * W)
    live = q < pixels
    w = q % W
    h = (q // W) % H
    image = q // (W * H)
    c = tl.arange(0, C)
    e_ptr += a * pixels * C
    inverse = 1.0 / half_scale(tl.load(reach_ptr + a))
    dy_ptr += a * B * (PH * PW * C)
    where_ptr += a * B * (PH * PW * C)
    e = channel(e_ptr, inverse, q * C, c, 0, live, C)
    dz = tl.zeros([BLOCK, C], tl.float32)
    for j in tl.static_range(COVER * COVER):  # from every window in which this pixel was the maximum
        ph = (h + PAD) // S - j // COVER
        pw = (w + PAD) // S - j % COVER
        i = h + PAD - ph * S
        k = w + PAD - pw * S
        covers = live & (i < K) & (k < K) & (ph >= 0) & (ph < PH) & (pw >= 0) & (pw < PW)
        at = (((image * PH + ph) * PW + pw) * C)[:, None] + c[None, :]
        arg = tl.load(where_ptr + at, mask=covers[:, None], other=255).to(tl.int32)
        dz += tl.where(arg == (i * K + k)[:, None], tl.load(dy_ptr + at, mask=covers[:, None], other=0.0), 0.0)
    if NORM:
        # u_c sums the squares of c-2 .. c+1, so that e_c takes part in u_{c-1} .. u_{c+2}.
        square = e * e
        near = square + moved(square, -2, C, BLOCK) + moved(square, -1, C, BLOCK) + moved(square, 1, C, BLOCK)
        r = tl.rsqrt(1.0 + scale * near)
        power = r * tl.sqrt(r)  # u^-0.75
        cross = dz * e * power * r * r  # dz e u^-1.75
        total = cross + moved(cross, -1, C, BLOCK) + moved(cross, 1, C, BLOCK) + moved(cross, 2, C, BLOCK)
        dz = dz * power - 1.5 * scale * e * total
    if ACT == 1:
        dz = tl.where(e > 0, dz, dz * (e + 1.0))  # the slope of ELU below zero is exp(x) = e + 1
    elif ACT == 2:
        dz = tl.where(e > 0, dz, 0.0)
    dz *= half_scale(tl.load(largest_ptr + a) * BOUND)
    tl.store(dx_ptr + a * pixels * C + (q * C)[:, None] + c[None, :], dz.to(tl.float16), mask=live[:, None])
