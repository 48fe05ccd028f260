"""Triton kernels of the aggregation tensor's magnitude: mean |z| by layer, then |z| + mean · n where z is not 0."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_kernel(z_ptr, blocks_ptr, sums_ptr, P, N, BLOCK: tl.constexpr):
    start = tl.load(blocks_ptr + 3 * tl.program_id(0) + 1)
    end = tl.load(blocks_ptr + 3 * tl.program_id(0) + 2)
    a = tl.program_id(1).to(tl.int64)
    i = start + tl.arange(0, BLOCK)
    z = tl.load(z_ptr + a * P + i, mask=i < end, other=0.0)
    tl.store(sums_ptr + a * N + tl.program_id(0), tl.sum(tl.abs(z), 0))


@triton.jit
def mean_kernel(sums_ptr, firsts_ptr, sizes_ptr, mean_ptr, N, L, BLOCK: tl.constexpr):
    """Block sums added in their order, so that the mean does not depend on how agents are chunked."""
    layer = tl.program_id(0)
    a = tl.program_id(1).to(tl.int64)
    first = tl.load(firsts_ptr + layer)
    end = tl.load(firsts_ptr + layer + 1)
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(first, end, BLOCK):
        i = at + tl.arange(0, BLOCK)
        total += tl.load(sums_ptr + a * N + i, mask=i < end, other=0.0)
    tl.store(mean_ptr + a * L + layer, tl.sum(total, 0) / tl.load(sizes_ptr + layer))


@triton.jit
def magnitude_kernel(z_ptr, votes_ptr, voters_ptr, mean_ptr, blocks_ptr, out_ptr, gain, P, L, BLOCK: tl.constexpr):
    layer = tl.load(blocks_ptr + 3 * tl.program_id(0))
    start = tl.load(blocks_ptr + 3 * tl.program_id(0) + 1)
    end = tl.load(blocks_ptr + 3 * tl.program_id(0) + 2)
    a = tl.program_id(1).to(tl.int64)
    i = start + tl.arange(0, BLOCK)
    z = tl.abs(tl.load(z_ptr + a * P + i, mask=i < end, other=0.0))
    votes = tl.load(votes_ptr + a * P + i, mask=i < end, other=0).to(tl.float32)
    voters = tl.maximum(tl.load(voters_ptr + a), 1).to(tl.float32)
    heard = gain * (votes / voters)
    y = tl.where(z > 0, z + tl.load(mean_ptr + a * L + layer) * heard, 0.0)
    tl.store(out_ptr + a * P + i, y, mask=i < end)
