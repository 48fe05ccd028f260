"""Triton kernels of local response norm and max-pooling in one, forward and backward.

One by one they are bound by memory and made up most of a training step; fused, each activation comes from memory once
in either direction, and only the pooled result and one byte of where the maximum was are written.
The input e [A, B, H, W, C] is what an activation function gave, as scaled halves; the backward pass goes through that
function too, since its slope follows from its value.

Each element of a tile is a word of four channels, 4k to 4k + 3, of one pixel: instructions, not memory, are what limits
these kernels, and of the norm's neighbours all but three lie in the same word.
"""

from __future__ import annotations

import triton
import triton.language as tl

from peermask.kernels.half_triton import half_scale

LARGEST = tl.constexpr(1e30)  # so that no product of it overflows


@triton.jit
def half(word):
    """The lowest 16 bits, as a float."""
    return word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def real(word):
    """The lowest 32 bits, as the float they are."""
    return word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def bits(x):
    """A float as the bits of a half."""
    return x.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int64)


@triton.jit
def four(e_ptr, at, known):
    word = tl.load(e_ptr + at, mask=known, other=0)
    return half(word), half(word >> 16), half(word >> 32), half(word >> 48)


@triton.jit
def near(pairs_ptr, at, k, known, C: tl.constexpr):
    """The two channels before a word and the one behind it; 0 outside the agent's channels, as the norm pads."""
    before = tl.load(pairs_ptr + 2 * at - 1, mask=known & (k > 0)[None, :], other=0)
    behind = tl.load(pairs_ptr + 2 * at + 2, mask=known & (k < C // 4 - 1)[None, :], other=0)
    return half(before), half(before >> 16), half(behind)


@triton.jit
def powers(e0, e1, e2, e3, before0, before1, behind, scale):
    """u^-0.5 of the word's channels, with u_c = 1 + scale · (e²_{c-2} + .. + e²_{c+1})."""
    middle = e1 * e1 + e0 * e0
    last = e2 * e2 + middle
    u0 = before0 * before0 + before1 * before1 + middle
    u1 = before1 * before1 + last
    u2 = e3 * e3 + last
    u3 = behind * behind + e1 * e1 + e2 * e2 + e3 * e3
    return (
        tl.rsqrt(1.0 + scale * u0),
        tl.rsqrt(1.0 + scale * u1),
        tl.rsqrt(1.0 + scale * u2),
        tl.rsqrt(1.0 + scale * u3),
    )


@triton.jit
def larger(new, best, place, arg):
    """The larger of both, and its place: the first of equal ones; NaN is the maximum, as in torch."""
    return tl.maximum(new, best, propagate_nan=tl.PropagateNan.ALL), tl.where(new > best, place, arg)


@triton.jit
def row_maximum(
    e_ptr, pairs_ptr, corner, h, w, k, live, scale,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, NORM: tl.constexpr,
    K: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest of one row of a window, still scaled, and in which of its columns it was; of four channels each.

    The row begins in column w [BLOCK] of row h; `corner` [BLOCK, WORDS] is where the column's pixels in row 0 lie.
    """
    b0 = tl.full([BLOCK, C // 4], float("-inf"), tl.float32)
    b1 = b0
    b2 = b0
    b3 = b0
    c0 = tl.zeros([BLOCK, C // 4], tl.int32)
    c1 = c0
    c2 = c0
    c3 = c0
    for j in tl.static_range(K):
        known = live[:, None]
        if PAD > 0:
            row = w * 0 + h  # of every window: comparing numbers that are not tensors gives no mask
            known = (live & (row >= 0) & (row < H) & (w + j >= 0) & (w + j < W))[:, None]
        at = corner + (h * W + j) * (C // 4)
        e0, e1, e2, e3 = four(e_ptr, at, known)
        if NORM:
            before0, before1, behind = near(pairs_ptr, at, k, known, C)
            r0, r1, r2, r3 = powers(e0, e1, e2, e3, before0, before1, behind, scale)
            e0 *= r0 * tl.sqrt(r0)  # u^-0.75
            e1 *= r1 * tl.sqrt(r1)
            e2 *= r2 * tl.sqrt(r2)
            e3 *= r3 * tl.sqrt(r3)
        if PAD > 0:
            e0 = tl.where(known, e0, float("-inf"))
            e1 = tl.where(known, e1, float("-inf"))
            e2 = tl.where(known, e2, float("-inf"))
            e3 = tl.where(known, e3, float("-inf"))
        b0, c0 = larger(e0, b0, j, c0)
        b1, c1 = larger(e1, b1, j, c1)
        b2, c2 = larger(e2, b2, j, c2)
        b3, c3 = larger(e3, b3, j, c3)
    return b0, b1, b2, b3, c0, c1, c2, c3


@triton.jit(do_not_specialize=["B"])
def pool_kernel(
    e_ptr, pairs_ptr, reach_ptr, largest_ptr, y_ptr, where_ptr, B, scale,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, C: tl.constexpr, NORM: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, HALF: tl.constexpr, WHERE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program goes down a column of windows: the last row of one is the first of the next where they overlap so.

    Neither step makes a number larger, so e's largest serves to scale the result to halves, where HALF is on.
    """
    a = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # columns of windows
    live = q < B * PW
    pw = q % PW
    image = q // PW
    w = pw * S - PAD
    WORDS: tl.constexpr = C // 4
    SHARED: tl.constexpr = K == S + 1
    k = tl.arange(0, WORDS)
    corner = ((image * (H * W) + w) * WORDS)[:, None] + k[None, :]
    result = a * B * (PH * PW * WORDS) + ((image * (PH * PW) + pw) * WORDS)[:, None] + k[None, :]
    e_ptr += a * B * (H * W * WORDS)
    pairs_ptr += a * B * (H * W * WORDS * 2)
    inverse = 1.0 / half_scale(tl.load(reach_ptr + a))
    scale = tl.minimum(scale * inverse * inverse, LARGEST)  # of numbers that are still scaled
    if HALF:
        inverse *= half_scale(tl.load(largest_ptr + a))
    if SHARED:
        n0, n1, n2, n3, d0, d1, d2, d3 = row_maximum(
            e_ptr, pairs_ptr, corner, -PAD, w, k, live, scale, H, W, C, NORM, K, PAD, BLOCK
        )
    for ph in range(PH):
        h = ph * S - PAD
        if SHARED:
            b0, b1, b2, b3, c0, c1, c2, c3 = n0, n1, n2, n3, d0, d1, d2, d3
        else:
            b0, b1, b2, b3, c0, c1, c2, c3 = row_maximum(
                e_ptr, pairs_ptr, corner, h, w, k, live, scale, H, W, C, NORM, K, PAD, BLOCK
            )
        for i in tl.static_range(1, K):
            n0, n1, n2, n3, d0, d1, d2, d3 = row_maximum(
                e_ptr, pairs_ptr, corner, h + i, w, k, live, scale, H, W, C, NORM, K, PAD, BLOCK
            )
            b0, c0 = larger(n0, b0, d0 + i * K, c0)
            b1, c1 = larger(n1, b1, d1 + i * K, c1)
            b2, c2 = larger(n2, b2, d2 + i * K, c2)
            b3, c3 = larger(n3, b3, d3 + i * K, c3)
        at = result + ph * (PW * WORDS)
        known = live[:, None]
        b0 *= inverse
        b1 *= inverse
        b2 *= inverse
        b3 *= inverse
        if HALF:
            word = bits(b0) | (bits(b1) << 16) | (bits(b2) << 32) | (bits(b3) << 48)
            tl.store(y_ptr + at, word, mask=known)
        else:
            tl.store(y_ptr + 4 * at, b0, mask=known)
            tl.store(y_ptr + 4 * at + 1, b1, mask=known)
            tl.store(y_ptr + 4 * at + 2, b2, mask=known)
            tl.store(y_ptr + 4 * at + 3, b3, mask=known)
        if WHERE:
            tl.store(where_ptr + at, c0 | (c1 << 8) | (c2 << 16) | (c3 << 24), mask=known)


@triton.jit
def moved(x, shift: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """x [BLOCK, WORDS] at word k + shift; 0 outside."""
    to = tl.arange(0, WORDS) + shift
    ok = (to >= 0) & (to < WORDS)
    at = tl.broadcast_to(tl.where(ok, to, 0)[None, :], [BLOCK, WORDS])
    return tl.where(ok[None, :], tl.gather(x, at, 1), 0.0)


@triton.jit
def before_activation(dz, e, inverse, ACT: tl.constexpr):
    if ACT == 1:
        dz = tl.where(e > 0, dz, dz * (e * inverse + 1.0))  # the slope of ELU below zero is exp(x) = e + 1
    elif ACT == 2:
        dz = tl.where(e > 0, dz, 0.0)
    return dz


@triton.jit(do_not_specialize=["B"])
def pool_back_kernel(
    e_ptr, pairs_ptr, reach_ptr, dy_ptr, largest_ptr, where_ptr, dx_ptr, B, scale,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, C: tl.constexpr,
    ACT: tl.constexpr, NORM: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr,
    COVER: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """∂ℓ/∂x before the activation, as halves: it is no more than BOUND times the largest of dy.

    A program goes down columns of pixels, q; dy comes as words of two floats.
    """
    a = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = q < B * W
    w = q % W
    image = q // W
    WORDS: tl.constexpr = C // 4
    k = tl.arange(0, WORDS)
    e_ptr += a * B * (H * W * WORDS)
    pairs_ptr += a * B * (H * W * 2 * WORDS)
    dx_ptr += a * B * (H * W * WORDS)
    dy_ptr += a * B * (PH * PW * 2 * WORDS)
    where_ptr += a * B * (PH * PW * WORDS)
    inverse = 1.0 / half_scale(tl.load(reach_ptr + a))
    scale = tl.minimum(scale * inverse * inverse, LARGEST)  # of numbers that are still scaled
    bound = half_scale(tl.load(largest_ptr + a) * BOUND)
    column = ((image * (H * W) + w) * WORDS)[:, None] + k[None, :]
    for p in range((H + S - 1) // S):
        for s in tl.static_range(S):  # rows from one window to the next, so that it is known which of them lie in one
            h = p * S + s
            known = (live & (q * 0 + h < H))[:, None]
            at = column + h * (W * WORDS)
            e0, e1, e2, e3 = four(e_ptr, at, known)
            z0 = tl.zeros([BLOCK, WORDS], tl.float32)
            z1 = z0
            z2 = z0
            z3 = z0
            for i in tl.static_range(COVER * COVER):  # from every window in which this pixel was the maximum
                if (s + PAD) % S + i // COVER * S < K:  # known when compiled
                    ph = p + (s + PAD) // S - i // COVER
                    pw = (w + PAD) // S - i % COVER
                    left = w + PAD - pw * S
                    there = (left < K) & (pw >= 0) & (pw < PW) & (q * 0 + ph >= 0) & (q * 0 + ph < PH)
                    covers = known & there[:, None]
                    window = ((image * (PH * PW) + pw) * WORDS)[:, None] + k[None, :] + ph * (PW * WORDS)
                    arg = tl.load(where_ptr + window, mask=covers, other=-1)
                    first = tl.load(dy_ptr + 2 * window, mask=covers, other=0)
                    second = tl.load(dy_ptr + 2 * window + 1, mask=covers, other=0)
                    place = (((s + PAD) % S + i // COVER * S) * K + left)[:, None]
                    z0 += tl.where((arg & 255) == place, real(first), 0.0)
                    z1 += tl.where(((arg >> 8) & 255) == place, real(first >> 32), 0.0)
                    z2 += tl.where(((arg >> 16) & 255) == place, real(second), 0.0)
                    z3 += tl.where(((arg >> 24) & 255) == place, real(second >> 32), 0.0)
            if NORM:
                before0, before1, behind = near(pairs_ptr, at, k, known, C)
                r0, r1, r2, r3 = powers(e0, e1, e2, e3, before0, before1, behind, scale)
                p0 = r0 * tl.sqrt(r0)  # u^-0.75
                p1 = r1 * tl.sqrt(r1)
                p2 = r2 * tl.sqrt(r2)
                p3 = r3 * tl.sqrt(r3)
                # e_c takes part in u_{c-1} .. u_{c+2}, so that their dz e u^-1.75 come back to it.
                x0 = z0 * e0 * p0 * r0 * r0
                x1 = z1 * e1 * p1 * r1 * r1
                x2 = z2 * e2 * p2 * r2 * r2
                x3 = z3 * e3 * p3 * r3 * r3
                behind0 = moved(x0, 1, WORDS, BLOCK)
                middle = x1 + x2
                z0 = z0 * p0 - (1.5 * scale) * e0 * (moved(x3, -1, WORDS, BLOCK) + x0 + middle)
                z1 = z1 * p1 - (1.5 * scale) * e1 * (x0 + middle + x3)
                z2 = z2 * p2 - (1.5 * scale) * e2 * (middle + x3 + behind0)
                z3 = z3 * p3 - (1.5 * scale) * e3 * (x2 + x3 + behind0 + moved(x1, 1, WORDS, BLOCK))
            z0 = before_activation(z0, e0, inverse, ACT) * bound
            z1 = before_activation(z1, e1, inverse, ACT) * bound
            z2 = before_activation(z2, e2, inverse, ACT) * bound
            z3 = before_activation(z3, e3, inverse, ACT) * bound
            word = bits(z0) | (bits(z1) << 16) | (bits(z2) << 32) | (bits(z3) << 48)
            tl.store(dx_ptr + at, word, mask=known)
