"""Triton kernel of batches: images by index, their pixels carried to [-1, 1], channels last."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gather_kernel(
    images_ptr, labels_ptr, index_ptr, out_ptr, label_ptr, peak, pixels, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    """(x / peak - 0.5) / 0.5 of one image's entries, rounded as on a CPU, and its label."""
    place = tl.program_id(0).to(tl.int64)
    sample = tl.load(index_ptr + place).to(tl.int64)
    size = pixels * CHANNELS
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # pixel by pixel, its channels side by side
    at = e % CHANNELS * pixels + e // CHANNELS
    x = tl.load(images_ptr + sample * size + at, mask=e < size, other=0).to(tl.float32)
    x = (tl.div_rn(x, peak) - 0.5) * 2.0
    tl.store(out_ptr + place * size + e, x, mask=e < size)
    if tl.program_id(1) == 0:
        tl.store(label_ptr + place, tl.load(labels_ptr + sample))
