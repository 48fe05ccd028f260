"""Triton kernel that counts votes: a product of zeros and ones, which is exact.

Where counts fit a byte, two columns are counted as one number: masks c and d as c + 256 d, which a half holds exactly,
and their counts likewise.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["chosen_ptr", "A", "K"])  # what was compiled for one agent serves any chunk
def votes_kernel(
    chosen_ptr, votes_ptr, out_ptr, A, K, P, stride,
    PAIRS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, SENDERS: tl.constexpr,
):  # fmt: skip
    """A tile of agents by a block of columns. Neighbouring programs share their columns, so that masks come from memory
    once and then from the cache."""
    if PAIRS:
        votes_ptr = votes_ptr.to(tl.pointer_type(tl.int16))
        out_ptr = out_ptr.to(tl.pointer_type(tl.int16))
    tiles = tl.cdiv(A, TILE)
    a = ((tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE))[:, None].to(tl.int64)
    i = ((tl.program_id(0) // tiles) * BLOCK + tl.arange(0, BLOCK))[None, :]
    count = tl.zeros([TILE, BLOCK], tl.float32)  # whole numbers are exact up to 2^24
    for first in range(0, K, SENDERS):
        k = first + tl.arange(0, SENDERS)
        chosen = tl.load(chosen_ptr + a * K + k[None, :], mask=(a < A) & (k[None, :] < K), other=0)
        sender = k[:, None].to(tl.int64)
        votes = tl.load(votes_ptr + sender * stride + i, mask=(sender < K) & (i < P), other=0)
        count = tl.dot(chosen.to(tl.float16), votes.to(tl.float16), count)
    tl.store(out_ptr + a * P + i, count.to(tl.int32).to(out_ptr.dtype.element_ty), mask=(a < A) & (i < P))
