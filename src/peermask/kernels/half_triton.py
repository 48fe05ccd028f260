"""Triton kernels that convert float32 to scaled float16 ("halves").

float16 has 10 mantissa bits, as many as tensor cores use of a float32 (TF32), at half the bytes and twice the speed,
but a small range. So numbers are multiplied by a power of two that puts the largest near the top of the range. Numbers
below 2^-27 of the largest lose bits, and those below 2^-37 become 0. If only a bound is known, that is 2^-27 of the
bound.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def half_scale(largest):
    """The power of two that carries numbers up to `largest` to below 2^14."""
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) - 127
    exponent = tl.minimum(tl.maximum(exponent, -110), 127)  # as far as the scale and its inverse are normal floats
    return ((127 + 13 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["w_ptr", "stride", "row_stride", "inner_stride"])
def weights_kernel(
    w_ptr, half_ptr, inverse_ptr, bias_ptr, x_largest_ptr, reach_ptr, stride, row_stride, inner_stride,
    INNER: tl.constexpr, PADDED: tl.constexpr, TAPS: tl.constexpr, TURN: tl.constexpr, BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of products [taps, PADDED inner channels], scaled by its own largest; turned round for the other way.

    Stores the inverse of the scale, by which a product is to be multiplied. Unless turned, also notes how far products
    with numbers up to x's largest can reach: Σ|w| times that, and the bias.
    """
    row = tl.program_id(0)
    a = tl.program_id(1).to(tl.int64)
    t = tl.arange(0, BLOCK)
    j = t % PADDED
    tap = t // PADDED
    if TURN:
        tap = TAPS - 1 - tap
    known = (t < TAPS * PADDED) & (j < INNER)
    w = tl.load(w_ptr + a * stride + row * row_stride + j * inner_stride + tap, mask=known, other=0.0)
    scale = half_scale(tl.max(tl.abs(w), 0))
    place = a * tl.num_programs(0) + row
    tl.store(half_ptr + place * (TAPS * PADDED) + t, (w * scale).to(tl.float16), mask=t < TAPS * PADDED)
    tl.store(inverse_ptr + place, 1.0 / scale)
    if not TURN:
        reach = tl.sum(tl.abs(w), 0) * tl.load(x_largest_ptr + a)
        if BIAS:
            reach += tl.abs(tl.load(bias_ptr + place))
        tl.atomic_max(reach_ptr + a, reach.to(tl.int32, bitcast=True), sem="relaxed")  # bits order as floats do


@triton.jit(do_not_specialize=["B", "A_STRIDE", "B_STRIDE", "H_STRIDE", "W_STRIDE", "C_STRIDE"])
def images_kernel(
    x_ptr, half_ptr, largest_ptr, B, A_STRIDE, B_STRIDE, H_STRIDE, W_STRIDE, C_STRIDE,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PADDED: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Images [A, B, H, W, C] with a margin of zeros, and of zero channels up to PADDED."""
    a = tl.program_id(1).to(tl.int64)
    WIDE: tl.constexpr = W + 2 * PAD
    HIGH: tl.constexpr = H + 2 * PAD
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = t % PADDED
    w = (t // PADDED) % WIDE - PAD
    h = (t // (PADDED * WIDE)) % HIGH - PAD
    b = (t // (PADDED * WIDE * HIGH)).to(tl.int64)
    inside = (b < B) & (c < C) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    at = a * A_STRIDE + b * B_STRIDE + h * H_STRIDE + w * W_STRIDE + c * C_STRIDE
    x = tl.load(x_ptr + at, mask=inside, other=0.0) * half_scale(tl.load(largest_ptr + a))
    entries = B * (HIGH * WIDE * PADDED)
    tl.store(half_ptr + a * entries + t, x.to(tl.float16), mask=t < entries)
