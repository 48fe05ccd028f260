"""Triton kernels of local response norm and max-pooling in one, forward and backward.

One by one they are bound by memory and made up most of a training step; fused, each activation is read once in
either direction, and only the pooled result and one byte of where the maximum was are written.
The input e [A, B, H, W, C] is what an activation function gave; the backward pass goes through that function too,
since its slope can be told from its value.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def channel(e_ptr, base, c, shift: tl.constexpr, inside, C: tl.constexpr):
    """e at channel c + shift; 0 outside the agent's channels, as the norm pads."""
    near = c + shift
    ok = inside[:, None] & (near >= 0)[None, :] & (near < C)[None, :]
    return tl.load(e_ptr + base[:, None] + near[None, :], mask=ok, other=0.0)


@triton.jit
def forward_kernel(
    e_ptr, y_ptr, where_ptr, pixels, H, W, PH, PW, scale,
    C: tl.constexpr, NORM: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # output pixels of all images of all agents
    live = q < pixels
    pw = q % PW
    ph = (q // PW) % PH
    image = (q // (PW * PH)).to(tl.int64)
    c = tl.arange(0, C)
    best = tl.full([BLOCK, C], float("-inf"), tl.float32)
    arg = tl.zeros([BLOCK, C], tl.int32)
    for i in tl.static_range(K * K):
        h = ph * S - PAD + i // K
        w = pw * S - PAD + i % K
        inside = live & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        base = ((image * H + h) * W + w) * C
        e = channel(e_ptr, base, c, 0, inside, C)
        if NORM:
            e1 = channel(e_ptr, base, c, -2, inside, C)
            e2 = channel(e_ptr, base, c, -1, inside, C)
            e3 = channel(e_ptr, base, c, 1, inside, C)
            r = tl.rsqrt(1.0 + scale * (e1 * e1 + e2 * e2 + e * e + e3 * e3))
            e = e * r * tl.sqrt(r)  # u^-0.75
        take = inside[:, None] & (e > best)
        best = tl.where(take, e, best)
        arg = tl.where(take, i, arg)
    out = q.to(tl.int64) * C
    tl.store(y_ptr + out[:, None] + c[None, :], best, mask=live[:, None])
    tl.store(where_ptr + out[:, None] + c[None, :], arg.to(tl.uint8), mask=live[:, None])


@triton.jit
def pooled_gradient(
    dy_ptr, where_ptr, image, h, w, c, shift: tl.constexpr, live, PH, PW,
    C: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, COVER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """∂ℓ/∂z at channel c + shift: from every window in which this pixel was the maximum."""
    near = c + shift
    known = (near >= 0) & (near < C)
    total = tl.zeros([BLOCK, C], tl.float32)
    for j in tl.static_range(COVER * COVER):
        ph = (h + PAD) // S - j // COVER
        pw = (w + PAD) // S - j % COVER
        i = h + PAD - ph * S
        k = w + PAD - pw * S
        covers = live & (i < K) & (k < K) & (ph >= 0) & (ph < PH) & (pw >= 0) & (pw < PW)
        ok = covers[:, None] & known[None, :]
        at = (((image * PH + ph) * PW + pw) * C)[:, None] + near[None, :]
        arg = tl.load(where_ptr + at, mask=ok, other=255).to(tl.int32)
        total += tl.load(dy_ptr + at, mask=ok & (arg == (i * K + k)[:, None]), other=0.0)
    return total


@triton.jit
def backward_kernel(
    e_ptr, dy_ptr, where_ptr, dx_ptr, pixels, H, W, PH, PW, scale,
    C: tl.constexpr, ACT: tl.constexpr, NORM: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, COVER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # input pixels
    live = q < pixels
    w = q % W
    h = (q // W) % H
    image = (q // (W * H)).to(tl.int64)
    c = tl.arange(0, C)
    base = q.to(tl.int64) * C
    e = channel(e_ptr, base, c, 0, live, C)
    dz = pooled_gradient(dy_ptr, where_ptr, image, h, w, c, 0, live, PH, PW, C, K, S, PAD, COVER, BLOCK)
    if NORM:
        # Channels c-3 .. c+3 reach the four norms that channel c takes part in: those of c-1 .. c+2.
        em3 = channel(e_ptr, base, c, -3, live, C)
        em2 = channel(e_ptr, base, c, -2, live, C)
        em1 = channel(e_ptr, base, c, -1, live, C)
        ep1 = channel(e_ptr, base, c, 1, live, C)
        ep2 = channel(e_ptr, base, c, 2, live, C)
        ep3 = channel(e_ptr, base, c, 3, live, C)
        middle = em1 * em1 + e * e
        r = tl.rsqrt(1.0 + scale * (em2 * em2 + middle + ep1 * ep1))
        power = r * tl.sqrt(r)  # u^-0.75
        cross = dz * e * power * r * r  # dz e u^-1.75
        r = tl.rsqrt(1.0 + scale * (em3 * em3 + em2 * em2 + middle))
        near = pooled_gradient(dy_ptr, where_ptr, image, h, w, c, -1, live, PH, PW, C, K, S, PAD, COVER, BLOCK)
        cross += near * em1 * r * tl.sqrt(r) * r * r
        r = tl.rsqrt(1.0 + scale * (middle + ep1 * ep1 + ep2 * ep2))
        near = pooled_gradient(dy_ptr, where_ptr, image, h, w, c, 1, live, PH, PW, C, K, S, PAD, COVER, BLOCK)
        cross += near * ep1 * r * tl.sqrt(r) * r * r
        r = tl.rsqrt(1.0 + scale * (e * e + ep1 * ep1 + ep2 * ep2 + ep3 * ep3))
        near = pooled_gradient(dy_ptr, where_ptr, image, h, w, c, 2, live, PH, PW, C, K, S, PAD, COVER, BLOCK)
        cross += near * ep2 * r * tl.sqrt(r) * r * r
        de = dz * power - 1.5 * scale * e * cross
    else:
        de = dz
    if ACT == 1:
        de = tl.where(e > 0, de, de * (e + 1.0))  # the slope of ELU below zero is exp(x) = e + 1
    elif ACT == 2:
        de = tl.where(e > 0, de, 0.0)
    tl.store(dx_ptr + base[:, None] + c[None, :], de, mask=live[:, None])
