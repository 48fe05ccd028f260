"""Triton kernels of convolutions with weights of each agent's own, as implicit matrix products.

Activations are [A, B, H, W, C], weights [A, OUT, R, S, C], all contiguous. A grouped convolution computes the same;
these keep an agent's pixels together, so that tiles are as large as for one plain network, and apply bias and
activation before anything is written.
"""

from __future__ import annotations

import triton
import triton.language as tl

ACTIVATIONS = {"none": 0, "elu": 1, "relu": 2}


@triton.jit
def activate(x, ACT: tl.constexpr):
    if ACT == 1:
        return tl.where(x > 0, x, tl.exp(tl.minimum(x, 0.0)) - 1.0)
    if ACT == 2:
        return tl.maximum(x, 0.0)
    return x


@triton.jit
def forward_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, B, H, W, OH, OW, M,
    C: tl.constexpr, OUT: tl.constexpr, R: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr,
    BIAS: tl.constexpr, ACT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[m, o] = act(Σ_{r,s,c} x[m + (r, s), c] w[o, r, s, c] + bias[o]); m runs over the pixels of an agent's batch."""
    a = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    ow = m % OW
    oh = (m // OW) % OH
    b = m // (OW * OH)
    live = m < M
    x_ptr += a * B * H * W * C
    w_ptr += a * OUT * R * S * C
    corner = ((b * H + oh - PAD) * W + ow - PAD) * C  # may lie outside; masked
    steps: tl.constexpr = C // BK
    acc = tl.zeros([BM, BN], tl.float32)
    for t in range(R * S * steps):
        rs = t // steps
        c0 = (t % steps) * BK
        r = rs // S
        s = rs % S
        inside = live & (oh + r >= PAD) & (oh + r < H + PAD) & (ow + s >= PAD) & (ow + s < W + PAD)
        at = corner + (r * W + s) * C + c0
        x = tl.load(x_ptr + at[:, None] + k[None, :], mask=inside[:, None], other=0.0)
        w = tl.load(w_ptr + n[None, :] * (R * S * C) + rs * C + c0 + k[:, None])
        acc = tl.dot(x, w, acc, input_precision="tf32")
    if BIAS:
        acc += tl.load(bias_ptr + a * OUT + n)[None, :]
    out = a * M * OUT + m.to(tl.int64) * OUT
    tl.store(y_ptr + out[:, None] + n[None, :], activate(acc, ACT), mask=live[:, None])


@triton.jit
def weight_kernel(
    x_ptr, dy_ptr, dw_ptr, x_scale_ptr, dy_scale_ptr, B, H, W, OH, OW, M,
    C: tl.constexpr, OUT: tl.constexpr, R: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dw[o, r, s, c] = Σ_m dy[m, o] x[m + (r, s), c].

    The sum runs over pixels, which do not lie next to each other: the matrix unit takes such operands in half
    precision only. Scaled to the middle of its range a half has the digits of TF32, with which the rest computes.
    """
    a = tl.program_id(2).to(tl.int64)
    o = tl.program_id(1) * BM + tl.arange(0, BM)
    blocks: tl.constexpr = C // BN
    rs = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * BN + tl.arange(0, BN)
    r = rs // S
    s = rs % S
    x_scale = tl.load(x_scale_ptr + a)
    dy_scale = tl.load(dy_scale_ptr + a)
    x_ptr += a * B * H * W * C
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
        dy = tl.load(dy_ptr + m[None, :] * OUT + o[:, None], mask=live[None, :], other=0.0)  # [BM, BK]
        acc = tl.dot((dy * dy_scale).to(tl.float16), (x * x_scale).to(tl.float16), acc)
    out = a * OUT * R * S * C + o.to(tl.int64) * (R * S * C) + rs * C
    tl.store(dw_ptr + out[:, None] + c[None, :], acc / (x_scale * dy_scale))


@triton.jit
def patch_forward_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, B, H, W, OH, OW, M,
    C: tl.constexpr, OUT: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    BIAS: tl.constexpr, ACT: tl.constexpr, BM: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """As forward_kernel, for images of few channels, padded already: a kernel row's S x C inputs lie side by side."""
    a = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.arange(0, OUT)
    j = tl.arange(0, ROW)
    live = m < M
    used = j < S * C
    corner = (((m // (OW * OH)) * H + (m // OW) % OH) * W + m % OW) * C
    x_ptr += a * B * H * W * C
    w_ptr += a * OUT * R * S * C
    acc = tl.zeros([BM, OUT], tl.float32)
    for r in tl.static_range(R):
        at = corner[:, None] + (r * W * C + j)[None, :]
        x = tl.load(x_ptr + at, mask=live[:, None] & used[None, :], other=0.0)  # [BM, ROW]
        w = tl.load(w_ptr + n[None, :] * (R * S * C) + (r * S * C + j)[:, None], mask=used[:, None], other=0.0)
        acc = tl.dot(x, w, acc, input_precision="tf32")
    if BIAS:
        acc += tl.load(bias_ptr + a * OUT + n)[None, :]
    out = a * M * OUT + m.to(tl.int64) * OUT
    tl.store(y_ptr + out[:, None] + n[None, :], activate(acc, ACT), mask=live[:, None])


@triton.jit
def patch_weight_kernel(
    x_ptr, dy_ptr, part_ptr, x_scale_ptr, dy_scale_ptr, B, H, W, OH, OW, M, each,
    C: tl.constexpr, OUT: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    BK: tl.constexpr, ROW: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Part of dw [OUT, ROWS x ROW] from `each` pixels; the parts are added afterwards."""
    a = tl.program_id(1).to(tl.int64)
    o = tl.arange(0, OUT)
    k = tl.arange(0, ROWS * ROW)
    reach = (k // ROW) * W * C + k % ROW  # where an input of the patch lies from its corner
    used = (k // ROW < R) & (k % ROW < S * C)
    x_scale = tl.load(x_scale_ptr + a)
    dy_scale = tl.load(dy_scale_ptr + a)
    x_ptr += a * B * H * W * C
    dy_ptr += a * M * OUT
    first = tl.program_id(0) * each
    end = tl.minimum(first + each, M)
    acc = tl.zeros([OUT, ROWS * ROW], tl.float32)
    for start in range(first, end, BK):
        m = start + tl.arange(0, BK)
        live = m < end
        corner = (((m // (OW * OH)) * H + (m // OW) % OH) * W + m % OW) * C
        x = tl.load(x_ptr + corner[:, None] + reach[None, :], mask=live[:, None] & used[None, :], other=0.0)
        dy = tl.load(dy_ptr + m[None, :] * OUT + o[:, None], mask=live[None, :], other=0.0)  # [OUT, BK]
        acc = tl.dot((dy * dy_scale).to(tl.float16), (x * x_scale).to(tl.float16), acc)
    part = (a * tl.num_programs(0) + tl.program_id(0)) * OUT * ROWS * ROW
    tl.store(part_ptr + part + o[:, None] * (ROWS * ROW) + k[None, :], acc / (x_scale * dy_scale))
