"""Triton kernel that compares masks: a product of zeros and ones, which is exact."""

from __future__ import annotations

import triton
import triton.language as tl

from peermask.kernels.blocks_triton import own_block


@triton.jit(do_not_specialize=["A", "K", "L"])
def overlap_kernel(
    mine_ptr, theirs_ptr, blocks_ptr, both_ptr, ones_ptr, A, K, P, L, TILE: tl.constexpr, BLOCK: tl.constexpr
):
    """A tile of agents against a tile of messages, over the columns of a block."""
    layer, start, end = own_block(blocks_ptr)
    i = start + tl.arange(0, BLOCK)
    a = tl.program_id(1) * TILE + tl.arange(0, TILE)
    k = tl.program_id(2) * TILE + tl.arange(0, TILE)
    here = (i < end)[None, :]
    mine = tl.load(mine_ptr + a[:, None].to(tl.int64) * P + i[None, :], mask=(a < A)[:, None] & here, other=0)
    theirs = tl.load(theirs_ptr + k[:, None].to(tl.int64) * P + i[None, :], mask=(k < K)[:, None] & here, other=0)
    both = tl.dot(mine.to(tl.float16), tl.trans(theirs.to(tl.float16)))  # [TILE, TILE], whole numbers up to BLOCK
    at = a[:, None] * K + k[None, :]
    tl.atomic_add(both_ptr + at, both.to(tl.int32), mask=(a < A)[:, None] & (k < K)[None, :])
    if tl.program_id(1) == 0:
        ones = tl.sum(theirs.to(tl.int32), 1)
        tl.atomic_add(ones_ptr + k * L + layer, ones, mask=k < K)
