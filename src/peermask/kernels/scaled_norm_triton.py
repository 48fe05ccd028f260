"""Triton kernels of group norm, with an addition and ReLU, forward and backward, and of sums of scaled float16.

Values are [A, B, H * W, C] scaled halves (half_triton.py), gains and shifts of a norm [A, C] floats. One program has
one image, which it reads twice: for its mean and spread, and to apply them; the second time it is in the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from peermask.kernels.half_triton import half_scale


@triton.jit
def by_group(x, C: tl.constexpr, G: tl.constexpr):
    """The mean over the channels of a group, at each of its channels: [C] -> [C]."""
    mean = tl.sum(x.reshape(G, C // G), 1) / (C // G)
    return tl.broadcast_to(mean[:, None], [G, C // G]).reshape(C)


@triton.jit(do_not_specialize=["B"])
def norm_kernel(
    y_ptr, y_bound_ptr, rest_ptr, rest_bound_ptr, rest_largest_ptr, gain_ptr, shift_ptr,
    z_ptr, z_bound_ptr, z_largest_ptr, mean_ptr, slope_ptr, steepest_ptr, B, eps, REACH,
    PIXELS: tl.constexpr, C: tl.constexpr, G: tl.constexpr, REST: tl.constexpr, RELU: tl.constexpr, BP: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """z = relu(gain (y - mean) / sqrt(var + eps) + shift + rest); no normalised number exceeds REACH.

    Notes mean and slope, so that (y - mean) slope is normalised, and an agent's largest z and slope.
    """
    a = tl.program_id(1)
    image = (a * B + tl.program_id(0)).to(tl.int64)
    c = tl.arange(0, C)
    y_ptr += image * (PIXELS * C)
    inverse = 1.0 / half_scale(tl.load(y_bound_ptr + a))
    # Differences from the first pixel: squares of the numbers themselves would leave no digits of a small spread.
    pivot = tl.load(y_ptr + c).to(tl.float32)
    once = tl.zeros([BP, C], tl.float32)
    twice = tl.zeros([BP, C], tl.float32)
    for start in tl.range(0, PIXELS, BP, num_stages=STAGES):
        p = start + tl.arange(0, BP)
        live = (p < PIXELS)[:, None]
        at = p[:, None] * C + c[None, :]
        y = tl.load(y_ptr + at, mask=live, other=0.0, eviction_policy="evict_last").to(tl.float32)
        d = tl.where(live, y - pivot[None, :], 0.0)
        once += d
        twice += d * d
    d = tl.sum(once, 0) / PIXELS
    own = pivot + d
    mean = by_group(own, C, G)
    var = by_group(tl.sum(twice, 0) / PIXELS - d * d + (own - mean) * (own - mean), C, G)
    slope = tl.rsqrt(tl.maximum(var, 0.0) * inverse * inverse + eps)
    slope = tl.where(var == var, slope, var)  # NaN stays NaN, here and below
    tl.atomic_max(steepest_ptr + a, tl.max(slope, 0).to(tl.int32, bitcast=True), sem="relaxed")
    slope *= inverse
    tl.store(mean_ptr + image * C + c, mean)
    tl.store(slope_ptr + image * C + c, slope)
    gain = tl.load(gain_ptr + a * C + c)
    shift = tl.load(shift_ptr + a * C + c)
    bound = tl.max(tl.abs(gain), 0) * REACH + tl.max(tl.abs(shift), 0)
    if REST:
        bound += tl.load(rest_largest_ptr + a)
        rest_inverse = 1.0 / half_scale(tl.load(rest_bound_ptr + a))
        rest_ptr += image * (PIXELS * C)
    tl.store(z_bound_ptr + a, bound)
    scale = half_scale(bound)
    z_ptr += image * (PIXELS * C)
    gain *= slope
    shift -= mean * gain
    largest = tl.zeros([BP, C], tl.float32)
    for start in tl.range(0, PIXELS, BP, num_stages=STAGES):
        p = start + tl.arange(0, BP)
        live = (p < PIXELS)[:, None]
        at = p[:, None] * C + c[None, :]
        y = tl.load(y_ptr + at, mask=live, other=0.0, eviction_policy="evict_first").to(tl.float32)
        z = y * gain[None, :] + shift[None, :]
        if REST:
            z += tl.load(rest_ptr + at, mask=live, other=0.0).to(tl.float32) * rest_inverse
        if RELU:
            z = tl.where(z < 0, 0.0, z)
        largest = tl.where(live, tl.maximum(largest, tl.abs(z)), largest)
        tl.store(z_ptr + at, (z * scale).to(tl.float16), mask=live)
    largest = tl.max(tl.max(largest, 1), 0)
    tl.atomic_max(z_largest_ptr + a, largest.to(tl.int32, bitcast=True), sem="relaxed")


@triton.jit
def passed_by_relu(
    dz_ptr, inverse, more_ptr, more_inverse, z_ptr, y, at, live, gain, shift,
    TWO: tl.constexpr, REST: tl.constexpr, RELU: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    """dz where ReLU let z = gain y + shift pass, or z as it is stored where something was added to it."""
    dz = tl.load(dz_ptr + at, mask=live, other=0.0, eviction_policy=POLICY).to(tl.float32) * inverse
    if TWO:
        dz += tl.load(more_ptr + at, mask=live, other=0.0, eviction_policy=POLICY).to(tl.float32) * more_inverse
    if RELU:
        if REST:
            dz = tl.where(tl.load(z_ptr + at, mask=live, other=0.0) != 0, dz, 0.0)
        else:
            dz = tl.where(y * gain[None, :] + shift[None, :] > 0, dz, 0.0)
    return dz


@triton.jit(do_not_specialize=["B"])
def norm_backward_kernel(
    dz_ptr, dz_bound_ptr, dz_largest_ptr, more_ptr, more_bound_ptr, more_largest_ptr, y_ptr, y_bound_ptr, z_ptr,
    mean_ptr, slope_ptr, steepest_ptr, gain_ptr, shift_ptr,
    dy_ptr, dy_bound_ptr, dy_largest_ptr, rest_ptr, rest_bound_ptr, sums_ptr, B, REACH,
    PIXELS: tl.constexpr, C: tl.constexpr, G: tl.constexpr, TWO: tl.constexpr, REST: tl.constexpr,
    RELU: tl.constexpr, BP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dy = slope (d - mean(d) - x mean(d x)) with d = gain dz and means over a group; x is normalised y.

    TWO: dz is the sum of two. What is added to the norm gets dz itself, where ReLU let it pass. `sums` are those of dz
    and dz x over an image's pixels, [A, B, 2, C].
    """
    a = tl.program_id(1)
    image = (a * B + tl.program_id(0)).to(tl.int64)
    c = tl.arange(0, C)
    first = image * (PIXELS * C)
    dz_ptr += first
    more_ptr += first
    y_ptr += first
    z_ptr += first
    mean = tl.load(mean_ptr + image * C + c)
    slope = tl.load(slope_ptr + image * C + c)
    gain = tl.load(gain_ptr + a * C + c)
    steep = gain * slope  # as z is computed from y
    shift = tl.load(shift_ptr + a * C + c) - mean * steep
    inverse = 1.0 / half_scale(tl.load(dz_bound_ptr + a))
    largest_dz = tl.load(dz_largest_ptr + a)
    rest_bound = tl.load(dz_bound_ptr + a)
    more_inverse = inverse
    if TWO:
        more_inverse = 1.0 / half_scale(tl.load(more_bound_ptr + a))
        largest_dz += tl.load(more_largest_ptr + a)
        rest_bound = largest_dz
    if REST:
        tl.store(rest_bound_ptr + a, rest_bound)
        rest_scale = half_scale(rest_bound)
    once = tl.zeros([BP, C], tl.float32)
    twice = tl.zeros([BP, C], tl.float32)
    for start in tl.range(0, PIXELS, BP, num_stages=STAGES):
        p = start + tl.arange(0, BP)
        live = (p < PIXELS)[:, None]
        at = p[:, None] * C + c[None, :]
        y = tl.load(y_ptr + at, mask=live, other=0.0, eviction_policy="evict_last").to(tl.float32)
        dz = passed_by_relu(
            dz_ptr, inverse, more_ptr, more_inverse, z_ptr, y, at, live, steep, shift, TWO, REST, RELU, "evict_last"
        )
        if REST:
            tl.store(rest_ptr + first + at, (dz * rest_scale).to(tl.float16), mask=live)
        once += dz
        twice += dz * (y - mean[None, :])
    once = tl.sum(once, 0)
    twice = tl.sum(twice, 0) * slope
    tl.store(sums_ptr + image * (2 * C) + c, once)
    tl.store(sums_ptr + image * (2 * C) + C + c, twice)
    bound = tl.max(tl.abs(gain), 0) * tl.load(steepest_ptr + a) * largest_dz * (2.0 + REACH)
    tl.store(dy_bound_ptr + a, bound)
    scale = half_scale(bound)
    # dy = of_dz dz + of_y y + rest; `slope` is for y as halves, that of real numbers is larger by y's scale.
    factor = slope * half_scale(tl.load(y_bound_ptr + a))
    of_dz = gain * factor
    of_y = -slope * factor * by_group(gain * twice, C, G) / PIXELS
    rest = -factor * by_group(gain * once, C, G) / PIXELS - mean * of_y
    dy_ptr += first
    largest = tl.zeros([BP, C], tl.float32)
    for start in tl.range(0, PIXELS, BP, num_stages=STAGES):
        p = start + tl.arange(0, BP)
        live = (p < PIXELS)[:, None]
        at = p[:, None] * C + c[None, :]
        y = tl.load(y_ptr + at, mask=live, other=0.0, eviction_policy="evict_first").to(tl.float32)
        dz = passed_by_relu(
            dz_ptr, inverse, more_ptr, more_inverse, z_ptr, y, at, live, steep, shift, TWO, REST, RELU, "evict_first"
        )
        dy = dz * of_dz[None, :] + y * of_y[None, :] + rest[None, :]
        largest = tl.where(live, tl.maximum(largest, tl.abs(dy)), largest)
        tl.store(dy_ptr + at, (dy * scale).to(tl.float16), mask=live)
    largest = tl.max(tl.max(largest, 1), 0)
    tl.atomic_max(dy_largest_ptr + a, largest.to(tl.int32, bitcast=True), sem="relaxed")


@triton.jit(do_not_specialize=["entries"])
def sum_kernel(
    x_ptr, x_bound_ptr, x_largest_ptr, y_ptr, y_bound_ptr, y_largest_ptr, z_ptr, z_bound_ptr, z_largest_ptr, entries,
    RELU: tl.constexpr, BOTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """z = x + y, or relu of it, or of x alone."""
    a = tl.program_id(1)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = a.to(tl.int64) * entries + t
    live = t < entries
    bound = tl.load(x_largest_ptr + a)
    z = tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32) / half_scale(tl.load(x_bound_ptr + a))
    if BOTH:
        bound += tl.load(y_largest_ptr + a)
        z += tl.load(y_ptr + at, mask=live, other=0.0).to(tl.float32) / half_scale(tl.load(y_bound_ptr + a))
    if RELU:
        z = tl.where(z < 0, 0.0, z)
    tl.store(z_bound_ptr + a, bound)
    tl.store(z_ptr + at, (z * half_scale(bound)).to(tl.float16), mask=live)
    tl.atomic_max(z_largest_ptr + a, tl.max(tl.abs(z), 0).to(tl.int32, bitcast=True), sem="relaxed")
