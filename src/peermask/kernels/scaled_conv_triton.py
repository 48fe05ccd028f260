"""Triton kernels of convolutions of any stride over scaled float16, with each agent's own weights.

Activations are [A, B, H, W, C] halves, weights [A * O, R * S * C] halves, one scale for each agent (half_triton.py).
Tiles of pixels come through tensor descriptors, which give zeros outside of an image, so there are no masks. A stride
splits images into rows and columns by their remainder: [A * B, H / STEP, STEP, W / STEP, STEP * C].
"""

from __future__ import annotations

import triton
import triton.language as tl

from peermask.kernels.half_triton import half_scale


@triton.jit(do_not_specialize=["B"])
def conv_kernel(
    x_desc, w_desc, bias_ptr, y_ptr, x_bound_ptr, x_largest_ptr, w_largest_ptr, y_bound_ptr, y_largest_ptr, B,
    PH: tl.constexpr, PW: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    PAD: tl.constexpr, STEP: tl.constexpr, TURNED: tl.constexpr, BIAS: tl.constexpr,
    BB: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[i, o] = Σ_{r,s,c} x[STEP i + (r, s) - PAD, c] w[o, r, s, c] + bias[o].

    TURNED gives the gradient of its input: x is then that of the output, OUT and C change places, and each remainder of
    pixels by STEP, PH x PW of them, hears from taps of its own.
    Sizes of y are bounded by those of x and w; the bound gives its scale, and its largest is noted.
    """
    a = tl.program_id(2)
    blocks: tl.constexpr = OUT // BN
    across: tl.constexpr = (PW + BW - 1) // BW
    down: tl.constexpr = (PH + BH - 1) // BH
    BM: tl.constexpr = BB * BH * BW
    n0 = (tl.program_id(0) % blocks) * BN
    tile = tl.program_id(0) // blocks
    w0 = (tile % across) * BW
    h0 = ((tile // across) % down) * BH
    b0 = (tile // (across * down)) * BB
    p = tl.program_id(1) // STEP
    q = tl.program_id(1) % STEP
    if TURNED:
        r0 = (p + PAD) % STEP
        s0 = (q + PAD) % STEP
        rows = (R - r0 + STEP - 1) // STEP
        columns = (S - s0 + STEP - 1) // STEP
    else:
        rows = R
        columns = S
    steps: tl.constexpr = C // BK
    acc = tl.zeros([BN, BM], tl.float32)  # channels first: a matrix unit takes more columns than rows at once
    for t in range(rows * columns * steps):
        k0 = (t % steps) * BK
        i = (t // steps) // columns
        j = (t // steps) % columns
        if TURNED:
            r = r0 + STEP * i
            s = s0 + STEP * j
            x = x_desc.load([a * B + b0, h0 + (p + PAD - r0) // STEP - i, 0, w0 + (q + PAD - s0) // STEP - j, k0])
            w = w_desc.load([a * C + k0, (r * S + s) * OUT + n0]).T
        else:
            r = i + (PAD * STEP - PAD)  # so that the remainder is of a number that is not negative
            s = j + (PAD * STEP - PAD)
            at = [a * B + b0, h0 + r // STEP - PAD, r % STEP, w0 + s // STEP - PAD, (s % STEP) * C + k0]
            x = x_desc.load(at)
            w = w_desc.load([a * OUT + n0, (i * S + j) * C + k0])
        acc = tl.dot(w, x.reshape(BM, BK).T, acc)
    y = acc.T
    sx = half_scale(tl.load(x_bound_ptr + a))
    w_largest = tl.load(w_largest_ptr + a)
    bound = tl.load(x_largest_ptr + a) * w_largest * (R * S * C)
    y = y / half_scale(w_largest) / sx
    n = n0 + tl.arange(0, BN)
    if BIAS:
        every = tl.arange(0, triton.next_power_of_2(OUT))
        bound += tl.max(tl.abs(tl.load(bias_ptr + a * OUT + every, mask=every < OUT, other=0.0)), 0)
        y += tl.load(bias_ptr + a * OUT + n)[None, :]
    m = tl.arange(0, BM)
    w = w0 + m % BW
    h = h0 + (m // BW) % BH
    b = b0 + m // (BW * BH)
    live = (b < B) & (h < PH) & (w < PW)
    APART: tl.constexpr = STEP if TURNED else 1
    pixel = ((a * B + b).to(tl.int64) * (PH * APART) + h * APART + p) * (PW * APART) + w * APART + q
    tl.store(y_ptr + pixel[:, None] * OUT + n[None, :], (y * half_scale(bound)).to(tl.float16), mask=live[:, None])
    largest = tl.max(tl.max(tl.where(live[:, None], tl.abs(y), 0.0), 1), 0)
    tl.atomic_max(y_largest_ptr + a, largest.to(tl.int32, bitcast=True), sem="relaxed")  # bits order as floats do
    tl.store(y_bound_ptr + a, bound)


@triton.jit
def pixels_at(desc, image, h, w, k0, r, s, C: tl.constexpr, PAD: tl.constexpr, STEP: tl.constexpr):
    """The inputs that outputs from (h, w) on meet at tap (r, s)."""
    r += PAD * STEP - PAD
    s += PAD * STEP - PAD
    return desc.load([image, h + r // STEP - PAD, r % STEP, w + s // STEP - PAD, (s % STEP) * C + k0])


@triton.jit(do_not_specialize=["B", "each"])
def weight_kernel(
    x_desc, dy_desc, part_ptr, x_bound_ptr, dy_bound_ptr, B, each,
    PH: tl.constexpr, PW: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    PAD: tl.constexpr, STEP: tl.constexpr, TAPS: tl.constexpr, FLAT: tl.constexpr,
    BB: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Part of dw[o, r, s, c] = Σ_i dy[i, o] x[STEP i + (r, s) - PAD, c] from `each` tiles of pixels.

    TAPS 3: all s of three at once, so that dy is read once for them. FLAT: a tile's pixels lie one after another.
    """
    a = tl.program_id(2)
    outs: tl.constexpr = OUT // BM
    ins: tl.constexpr = C // BN
    o0 = (tl.program_id(0) % outs) * BM
    c0 = ((tl.program_id(0) // outs) % ins) * BN
    rs = tl.program_id(0) // (outs * ins)
    if TAPS == 3:
        r = rs
        s = 0
    else:
        r = rs // S
        s = rs % S
    across: tl.constexpr = (PW + BW - 1) // BW
    down: tl.constexpr = (PH + BH - 1) // BH
    K: tl.constexpr = BB * BH * BW
    acc = tl.zeros([BM, BN], tl.float32)
    if TAPS == 3:
        acc1 = tl.zeros([BM, BN], tl.float32)
        acc2 = tl.zeros([BM, BN], tl.float32)
    first = tl.program_id(1) * each
    for tile in range(first, tl.minimum(first + each, (B // BB) * (across * down))):
        w0 = (tile % across) * BW
        h0 = ((tile // across) % down) * BH
        image = a * B + (tile // (across * down)) * BB
        if FLAT:
            dy = dy_desc.load([(image * PH + h0) * PW + w0, o0]).T
        else:
            dy = dy_desc.load([image, h0, 0, w0, o0]).reshape(K, BM).T
        x = pixels_at(x_desc, image, h0, w0, c0, r, s, C, PAD, STEP).reshape(K, BN)
        acc = tl.dot(dy, x, acc)
        if TAPS == 3:
            x1 = pixels_at(x_desc, image, h0, w0, c0, r, 1, C, PAD, STEP).reshape(K, BN)
            acc1 = tl.dot(dy, x1, acc1)
            x2 = pixels_at(x_desc, image, h0, w0, c0, r, 2, C, PAD, STEP).reshape(K, BN)
            acc2 = tl.dot(dy, x2, acc2)
    sx = half_scale(tl.load(x_bound_ptr + a))
    sy = half_scale(tl.load(dy_bound_ptr + a))
    part = (a * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * (OUT * R * S * C)
    out = part_ptr + part + (r * S + s) * C + c0
    at = (o0 + tl.arange(0, BM))[:, None] * (R * S * C) + tl.arange(0, BN)[None, :]
    tl.store(out + at, acc / sx / sy)
    if TAPS == 3:
        tl.store(out + C + at, acc1 / sx / sy)
        tl.store(out + 2 * C + at, acc2 / sx / sy)


@triton.jit(do_not_specialize=["splits"])
def join_kernel(
    part_ptr, dw_ptr, splits, INNER: tl.constexpr, PADDED: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The sum of all parts [A, splits, O, TAPS, PADDED], as [A, O, INNER, TAPS]."""
    row = tl.program_id(0)
    rows = tl.num_programs(0)
    a = tl.program_id(1).to(tl.int64)
    t = tl.arange(0, BLOCK)
    known = t < INNER * TAPS
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(splits):
        at = ((a * splits + part) * rows + row) * (TAPS * PADDED) + (t % TAPS) * PADDED + t // TAPS
        total += tl.load(part_ptr + at, mask=known, other=0.0)
    tl.store(dw_ptr + (a * rows + row) * (INNER * TAPS) + t, total, mask=known)


@triton.jit(do_not_specialize=["w_ptr", "stride"])
def halve_weights_kernel(
    w_ptr, half_ptr, largest_ptr, stride, INNER: tl.constexpr, PADDED: tl.constexpr, TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """[A, O, INNER, TAPS] floats to halves [A, O, TAPS, PADDED], one scale for each agent."""
    row = tl.program_id(0)
    a = tl.program_id(1).to(tl.int64)
    t = tl.arange(0, BLOCK)
    c = t % PADDED
    known = (t < TAPS * PADDED) & (c < INNER)
    w = tl.load(w_ptr + a * stride + row * (INNER * TAPS) + c * TAPS + t // PADDED, mask=known, other=0.0)
    w *= half_scale(tl.load(largest_ptr + a))
    at = (a * tl.num_programs(0) + row) * (TAPS * PADDED)
    tl.store(half_ptr + at + t, w.to(tl.float16), mask=t < TAPS * PADDED)


@triton.jit(do_not_specialize=["x_ptr", "B", "A_STRIDE", "B_STRIDE", "C_STRIDE", "H_STRIDE", "W_STRIDE"])
def patches_kernel(
    x_ptr, half_ptr, largest_ptr, B, A_STRIDE, B_STRIDE, C_STRIDE, H_STRIDE, W_STRIDE,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, STEP: tl.constexpr, PATCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Patch of each output, for images of few channels: [A, B, OH, OW, PATCH] halves, in the order of w's (c, r, s)."""
    a = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = t % PATCH
    c = k // (R * S)
    h = (t // (PATCH * OW)) % OH * STEP + (k // S) % R - PAD
    w = (t // PATCH) % OW * STEP + k % S - PAD
    b = (t // (PATCH * OW * OH)).to(tl.int64)
    inside = (b < B) & (c < C) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    at = a * A_STRIDE + b * B_STRIDE + c * C_STRIDE + h * H_STRIDE + w * W_STRIDE
    x = tl.load(x_ptr + at, mask=inside, other=0.0) * half_scale(tl.load(largest_ptr + a))
    entries = B * (OH * OW * PATCH)
    tl.store(half_ptr + a * entries + t, x.to(tl.float16), mask=t < entries)
