"""Triton kernel of a masked model."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def masked_model_kernel(mask_ptr, w_ptr, frozen_ptr, out_ptr, w_stride, W, P, BLOCK: tl.constexpr):
    a = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = tl.load(mask_ptr + a * W + i, mask=i < W, other=0).to(tl.float32)
    w = tl.load(w_ptr + a * w_stride + i, mask=i < W, other=0.0)
    rest = tl.load(frozen_ptr + i, mask=(i >= W) & (i < P), other=0.0)
    # A product, not a choice: a negative weight that is not kept is -0, as the reference implementation has it.
    tl.store(out_ptr + a * P + i, tl.where(i < W, m * w, rest), mask=i < P)
