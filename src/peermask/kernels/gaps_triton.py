"""Triton kernels for the length of a gap code: how many members a layer has, and how far apart they are."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count_kernel(members_ptr, blocks_ptr, counts_ptr, P, L, BLOCK: tl.constexpr):
    layer = tl.load(blocks_ptr + 3 * tl.program_id(0))
    start = tl.load(blocks_ptr + 3 * tl.program_id(0) + 1)
    end = tl.load(blocks_ptr + 3 * tl.program_id(0) + 2)
    a = tl.program_id(1).to(tl.int64)
    i = start + tl.arange(0, BLOCK)
    members = tl.load(members_ptr + a * P + i, mask=i < end, other=0).to(tl.int32)
    tl.atomic_add(counts_ptr + a * L + layer, tl.sum(members, 0))


@triton.jit
def last_kernel(members_ptr, blocks_ptr, invert_ptr, last_ptr, P, L, N, BLOCK: tl.constexpr):
    """The last position of each block that is in the set."""
    layer = tl.load(blocks_ptr + 3 * tl.program_id(0))
    start = tl.load(blocks_ptr + 3 * tl.program_id(0) + 1)
    end = tl.load(blocks_ptr + 3 * tl.program_id(0) + 2)
    a = tl.program_id(1).to(tl.int64)
    i = start + tl.arange(0, BLOCK)
    members = tl.load(members_ptr + a * P + i, mask=i < end, other=0).to(tl.int32)
    inside = (members != tl.load(invert_ptr + a * L + layer).to(tl.int32)) & (i < end)
    tl.store(last_ptr + a * N + tl.program_id(0), tl.max(tl.where(inside, i, -1), 0))


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def high_kernel(members_ptr, blocks_ptr, invert_ptr, k_ptr, before_ptr, high_ptr, P, L, N, BLOCK: tl.constexpr):
    """Σ gap >> k over the positions of the set in each block; `before` is the last position of earlier blocks."""
    layer = tl.load(blocks_ptr + 3 * tl.program_id(0))
    start = tl.load(blocks_ptr + 3 * tl.program_id(0) + 1)
    end = tl.load(blocks_ptr + 3 * tl.program_id(0) + 2)
    a = tl.program_id(1).to(tl.int64)
    row = a * L + layer
    invert = tl.load(invert_ptr + row).to(tl.int32)
    i = start + tl.arange(0, BLOCK)
    members = tl.load(members_ptr + a * P + i, mask=i < end, other=0).to(tl.int32)
    inside = (members != invert) & (i < end)
    near = tl.load(members_ptr + a * P + i - 1, mask=(i > start) & (i < end), other=0).to(tl.int32)
    one_before = tl.where((near != invert) & (i > start) & (i < end), i - 1, -1)
    previous = tl.associative_scan(one_before, 0, larger)
    previous = tl.maximum(previous, tl.load(before_ptr + a * N + tl.program_id(0)))
    high = tl.where(inside, (i - previous - 1) >> tl.load(k_ptr + row).to(tl.int32), 0)
    tl.atomic_add(high_ptr + row, tl.sum(high, 0))
