"""Triton kernels of convolutions with each agent's own weights, as implicit matrix products of scaled float16.

Activations are [A, B, H, W, C], weights [A, OUT, R, S, C], all contiguous. A grouped convolution computes the same;
these keep an agent's pixels together, so that tiles are as large as for one plain network, and apply bias and
activation before anything is written. Operands are scaled halves (half_triton.py), sums are floats.
"""

from __future__ import annotations

import triton
import triton.language as tl

from peermask.kernels.half_triton import half_scale

ACTIVATIONS = {"none": 0, "elu": 1, "relu": 2}


@triton.jit
def activated(acc, inverse, bias, scale, BIAS: tl.constexpr, ACT: tl.constexpr):
    """Convert products [BM, BN] to outputs: bias added, activated, and `scale` times as large, a power of two.

    `inverse` and `bias` [BN] have that scale already. exp(y) - 1 is exact to 2^-24; if all of an agent's products are
    below 2^-11, y itself is nearer. NaN stays NaN, so that a loss shows it: maximum and minimum would drop it.
    """
    y = acc * inverse[None, :]
    if BIAS:
        y += bias[None, :]
    if ACT == 1:
        curved = tl.where(scale > 16777216.0, 0.0, scale)  # 2^24, as half_scale has it for them
        straight = tl.where(scale > 16777216.0, 1.0, 0.0)
        below = tl.exp2(y * (1.4426950408889634 / scale)) * curved + (y * straight - curved)
        y = tl.where(y < 0, below, y)
    if ACT == 2:
        y = tl.where(y < 0, 0.0, y)
    return y


@triton.jit
def inverse_of(a, n, scale, x_largest_ptr, inverse_ptr, BOUND: tl.constexpr, OUT: tl.constexpr):
    """Factor of products that undoes both operands' scales and applies the result's, [BN]."""
    return tl.load(inverse_ptr + a * OUT + n) / half_scale(tl.load(x_largest_ptr + a) * BOUND) * scale


@triton.jit
def bias_of(a, n, scale, bias_ptr, OUT: tl.constexpr, BIAS: tl.constexpr):
    """[BN], if there is one."""
    return tl.load(bias_ptr + a * OUT + n) * scale if BIAS else 0.0


@triton.jit
def note_largest(sizes, a, scale, largest_ptr):
    """Update the agent's largest number from each row's [BM], scaled; bits of non-negative floats order as they do."""
    tl.atomic_max(largest_ptr + a, (tl.max(sizes, 0) / scale).to(tl.int32, bitcast=True), sem="relaxed")


@triton.jit(do_not_specialize=["B"])
def forward_kernel(
    x_ptr, x_largest_ptr, w_ptr, inverse_ptr, bias_ptr, y_ptr, largest_ptr, reach_ptr, B,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    C: tl.constexpr, OUT: tl.constexpr, R: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, BOUND: tl.constexpr,
    BIAS: tl.constexpr, ACT: tl.constexpr, HALF: tl.constexpr, APART: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[m, o] = act(Σ_{r,s,c} x[m + (r, s), c] w[o, r, s, c] + bias[o]); m runs over the pixels of an agent's batch.

    With APART a tile has one pixel of many images, and takes only those of its taps that lie in the image.
    """
    a = tl.program_id(2).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    M = B * (OH * OW)
    x_ptr += a * B * (H * W * C)
    w_ptr += a * (OUT * R * S * C)
    steps: tl.constexpr = C // BK
    acc = tl.zeros([BM, BN], tl.float32)
    if APART:
        tiles = tl.cdiv(B, BM)
        pixel = tl.program_id(0) // tiles
        b = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
        oh = pixel // OW
        ow = pixel % OW
        m = b * (OH * OW) + pixel
        first_r = tl.maximum(PAD - oh, 0)
        first_s = tl.maximum(PAD - ow, 0)
        rows = tl.minimum(H + PAD - oh, R) - first_r
        columns = tl.minimum(W + PAD - ow, S) - first_s
        live = b < B
        image = x_ptr + b.to(tl.int64)[:, None] * (H * W * C) + k[None, :]
        for t in range(rows * columns * steps):
            rs = t // steps
            c0 = (t % steps) * BK
            r = first_r + rs // columns
            s = first_s + rs % columns
            at = ((oh + r - PAD) * W + ow + s - PAD) * C + c0
            x = tl.load(image + at, mask=live[:, None], other=0.0)
            w = tl.load(w_ptr + n[None, :] * (R * S * C) + (r * S + s) * C + c0 + k[:, None])
            acc = tl.dot(x, w, acc)
    else:
        m = tl.program_id(0) * BM + tl.arange(0, BM)
        ow = m % OW
        oh = (m // OW) % OH
        b = m // (OW * OH)
        live = m < M
        corner = ((b * H + oh - PAD) * W + ow - PAD) * C  # may lie outside; masked
        for t in range(R * S * steps):
            rs = t // steps
            c0 = (t % steps) * BK
            r = rs // S
            s = rs % S
            inside = live & (oh + r >= PAD) & (oh + r < H + PAD) & (ow + s >= PAD) & (ow + s < W + PAD)
            at = corner + (r * W + s) * C + c0
            x = tl.load(x_ptr + at[:, None] + k[None, :], mask=inside[:, None], other=0.0)
            w = tl.load(w_ptr + n[None, :] * (R * S * C) + rs * C + c0 + k[:, None])
            acc = tl.dot(x, w, acc)
    scale = half_scale(tl.load(reach_ptr + a)) if HALF else 1.0  # activations make no number larger than products
    inverse = inverse_of(a, n, scale, x_largest_ptr, inverse_ptr, BOUND, OUT)
    y = activated(acc, inverse, bias_of(a, n, scale, bias_ptr, OUT, BIAS), scale, BIAS, ACT)
    note_largest(tl.where(m < M, tl.max(tl.abs(y), 1), 0.0), a, scale, largest_ptr)
    at = a * M * OUT + m.to(tl.int64) * OUT
    tl.store(y_ptr + at[:, None] + n[None, :], y.to(y_ptr.dtype.element_ty), mask=(m < M)[:, None])


@triton.jit(do_not_specialize=["B"])
def weight_kernel(
    x_ptr, x_largest_ptr, dy_ptr, dy_largest_ptr, dw_ptr, B,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    C: tl.constexpr, OUT: tl.constexpr, R: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, BOUND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dw[o, r, s, c] = Σ_m dy[m, o] x[m + (r, s), c]."""
    a = tl.program_id(2).to(tl.int64)
    o = tl.program_id(1) * BM + tl.arange(0, BM)
    blocks: tl.constexpr = C // BN
    rs = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * BN + tl.arange(0, BN)
    r = rs // S
    s = rs % S
    M = B * (OH * OW)
    x_ptr += a * B * (H * W * C)
    dy_ptr += a * M * OUT
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, M, BK):
        m = start + tl.arange(0, BK)
        ow = m % OW
        oh = (m // OW) % OH
        b = m // (OW * OH)
        live = m < M
        inside = live & (oh + r >= PAD) & (oh + r < H + PAD) & (ow + s >= PAD) & (ow + s < W + PAD)
        at = ((b * H + oh + r - PAD) * W + ow + s - PAD) * C
        x = tl.load(x_ptr + at[:, None] + c[None, :], mask=inside[:, None], other=0.0)  # [BK, BN]
        dy = tl.load(dy_ptr + m[:, None] * OUT + o[None, :], mask=live[:, None], other=0.0)  # [BK, BM]
        acc = tl.dot(tl.trans(dy), x, acc)
    dw = acc / half_scale(tl.load(x_largest_ptr + a)) / half_scale(tl.load(dy_largest_ptr + a) * BOUND)
    out = a * (OUT * R * S * C) + o.to(tl.int64) * (R * S * C) + rs * C
    tl.store(dw_ptr + out[:, None] + c[None, :], dw)


@triton.jit(do_not_specialize=["B", "each"])
def patch_forward_kernel(
    x_ptr, x_largest_ptr, w_ptr, inverse_ptr, bias_ptr, y_ptr, largest_ptr, reach_ptr, B, each,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    C: tl.constexpr, OUT: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    BIAS: tl.constexpr, ACT: tl.constexpr, BM: tl.constexpr, PATCH: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """forward_kernel for padded images of few channels: a whole patch is one step of the product.

    A program computes `each` tiles, one after another: all weights are loaded once for them. Where ACROSS is not 0,
    tiles have whole rows of so many pixels, some of them behind the end of the image's: places cost less to compute.
    """
    a = tl.program_id(1).to(tl.int64)
    i = tl.arange(0, BM)
    n = tl.arange(0, OUT)
    k = tl.arange(0, PATCH)
    M = B * (OH * OW)
    used = (k < R * S * C)[None, :]
    reach = (k // (S * C)) * (W * C) + k % (S * C)
    x_ptr += a * B * (H * W * C)
    y_ptr += a * M * OUT
    w_at = a * (OUT * R * S * C) + n[None, :] * (R * S * C) + k[:, None]
    w = tl.load(w_ptr + w_at, mask=(k < R * S * C)[:, None], other=0.0)
    scale = half_scale(tl.load(reach_ptr + a))  # activations make no number larger than products
    inverse = inverse_of(a, n, scale, x_largest_ptr, inverse_ptr, 1, OUT)
    bias = bias_of(a, n, scale, bias_ptr, OUT, BIAS)
    sizes = tl.zeros([BM], tl.float32)
    first = tl.program_id(0) * each
    last = tl.minimum(first + each, tl.cdiv(M, BM) if ACROSS == 0 else B * tl.cdiv(OH, BM // ACROSS))
    for tile in range(first, last):
        if ACROSS == 0:
            m = tile * BM + i
            corner = ((m // (OW * OH)) * H + (m // OW) % OH) * W + m % OW
            live = m < M
        else:  # a tile has whole rows of an image, with some pixels behind their ends
            row = tile % tl.cdiv(OH, BM // ACROSS) * (BM // ACROSS)
            image = tile // tl.cdiv(OH, BM // ACROSS)
            corner = (image * H + row) * W + ((i // ACROSS) * W + i % ACROSS)
            m = (image * OH + row) * OW + ((i // ACROSS) * OW + i % ACROSS)
            live = (i % ACROSS < OW) & (row + i // ACROSS < OH)
        x = tl.load(x_ptr + corner[:, None] * C + reach[None, :], mask=live[:, None] & used, other=0.0)
        y = activated(tl.dot(x, w), inverse, bias, scale, BIAS, ACT)
        sizes = tl.maximum(sizes, tl.where(live, tl.max(tl.abs(y), 1), 0.0))
        tl.store(y_ptr + m[:, None] * OUT + n[None, :], y.to(tl.float16), mask=live[:, None])
    note_largest(sizes, a, scale, largest_ptr)


@triton.jit(do_not_specialize=["B", "each"])
def patch_weight_kernel(
    x_ptr, x_largest_ptr, dy_ptr, dy_largest_ptr, part_ptr, B, each,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    C: tl.constexpr, OUT: tl.constexpr, R: tl.constexpr, S: tl.constexpr, BOUND: tl.constexpr,
    BK: tl.constexpr, PATCH: tl.constexpr,
):  # fmt: skip
    """Part of dw [OUT, PATCH] from `each` pixels; the parts are added afterwards."""
    a = tl.program_id(1).to(tl.int64)
    o = tl.arange(0, OUT)
    k = tl.arange(0, PATCH)
    M = B * (OH * OW)
    used = k < R * S * C
    reach = (k // (S * C)) * (W * C) + k % (S * C)
    x_ptr += a * B * (H * W * C)
    dy_ptr += a * M * OUT
    first = tl.program_id(0) * each
    end = tl.minimum(first + each, M)
    acc = tl.zeros([OUT, PATCH], tl.float32)
    for start in range(first, end, BK):
        m = start + tl.arange(0, BK)
        live = m < end
        corner = (((m // (OW * OH)) * H + (m // OW) % OH) * W + m % OW) * C
        x = tl.load(x_ptr + corner[:, None] + reach[None, :], mask=live[:, None] & used[None, :], other=0.0)
        dy = tl.load(dy_ptr + m[:, None] * OUT + o[None, :], mask=live[:, None], other=0.0)  # [BK, OUT]
        acc = tl.dot(tl.trans(dy), x, acc)
    dw = acc / half_scale(tl.load(x_largest_ptr + a)) / half_scale(tl.load(dy_largest_ptr + a) * BOUND)
    part = (a * tl.num_programs(0) + tl.program_id(0)) * (OUT * PATCH)
    tl.store(part_ptr + part + o[:, None] * PATCH + k[None, :], dw)


@triton.jit(do_not_specialize=["M", "each"])
def bias_kernel(dy_ptr, dy_largest_ptr, part_ptr, M, each, OUT: tl.constexpr, BOUND: tl.constexpr, BK: tl.constexpr):
    """Part of dbias [OUT] from `each` pixels: in an order that does not depend on how agents are chunked."""
    a = tl.program_id(1).to(tl.int64)
    o = tl.arange(0, OUT)
    first = tl.program_id(0) * each
    end = tl.minimum(first + each, M)
    acc = tl.zeros([BK, OUT], tl.float32)
    for start in range(first, end, BK):
        m = start + tl.arange(0, BK)
        acc += tl.load(dy_ptr + a * M * OUT + m[:, None] * OUT + o[None, :], mask=(m < end)[:, None], other=0.0)
    part = (a * tl.num_programs(0) + tl.program_id(0)) * OUT
    tl.store(part_ptr + part + o, tl.sum(acc, 0) / half_scale(tl.load(dy_largest_ptr + a) * BOUND))
