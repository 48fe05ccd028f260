"""Triton kernels that count votes, compare masks, and choose which neighbours to believe."""

from __future__ import annotations

import triton
import triton.language as tl

from peermask.kernels.blocks_triton import own_block


@triton.jit(do_not_specialize=["chosen_ptr", "A", "K"])  # what was compiled for one agent serves any chunk
def votes_kernel(
    chosen_ptr, votes_ptr, out_ptr, A, K, P, stride,
    PAIRS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, SENDERS: tl.constexpr,
):  # fmt: skip
    """Votes of a tile of agents in a block of columns: a product of zeros and ones, which is exact.

    Where counts fit a byte (PAIRS), two columns are counted as one number: masks c and d as c + 256 d, which a half
    holds exactly, and their counts likewise. Neighbouring programs share their columns, so that masks come from memory
    once and then from the cache.
    """
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


@triton.jit
def own_votes_kernel(votes_ptr, own_ptr, mask_ptr, out_ptr, P, BLOCK: tl.constexpr):
    """Add an agent's own votes for what its mask keeps."""
    a = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    votes = tl.load(votes_ptr + a * P + i, mask=i < P, other=0)
    kept = tl.load(mask_ptr + a * P + i, mask=i < P, other=0)
    tl.store(out_ptr + a * P + i, tl.where(kept != 0, votes + tl.load(own_ptr + a), votes), mask=i < P)


@triton.jit(do_not_specialize=["A", "K", "L"])
def overlap_kernel(
    mine_ptr, theirs_ptr, blocks_ptr, both_ptr, own_ptr, ones_ptr, A, K, P, L,
    IN_LINES: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """A tile of agents against a tile of messages over a block of columns: a product of zeros and ones, exact.

    Sums stay in registers over the whole block, a few columns at a time: one atomic addition each at its end."""
    layer, start, end = own_block(blocks_ptr, IN_LINES)
    a = tl.program_id(1) * TILE + tl.arange(0, TILE)
    k = tl.program_id(2) * TILE + tl.arange(0, TILE)
    mine_row = mine_ptr + a[:, None].to(tl.int64) * P
    theirs_row = theirs_ptr + k[:, None].to(tl.int64) * P
    both = tl.zeros([TILE, TILE], tl.int32)
    own = tl.zeros([TILE, STEP], tl.int32)
    ones = tl.zeros([TILE, STEP], tl.int32)
    for at in range(start, end, STEP):
        i = at + tl.arange(0, STEP)
        here = (i < end)[None, :]
        mine = tl.load(mine_row + i[None, :], mask=(a < A)[:, None] & here, other=0)
        theirs = tl.load(theirs_row + i[None, :], mask=(k < K)[:, None] & here, other=0)
        both = tl.dot(mine, tl.trans(theirs), both, out_dtype=tl.int32)
        own += mine
        ones += theirs
    place = a[:, None] * K + k[None, :]
    tl.atomic_add(both_ptr + place, both, mask=(a < A)[:, None] & (k < K)[None, :])
    if tl.program_id(1) == 0:
        tl.atomic_add(ones_ptr + k * L + layer, tl.sum(ones, 1), mask=k < K)
    if tl.program_id(2) == 0:
        tl.atomic_add(own_ptr + a * L + layer, tl.sum(own, 1), mask=a < A)


@triton.jit(do_not_specialize=["K", "L"])
def believe_kernel(
    both_ptr, own_ptr, ones_ptr, heard_ptr, sizes_ptr, out_ptr, factor, limit, K, L, PLACES: tl.constexpr
):
    """One agent: distances of all messages, their median among those heard, and which are near enough."""
    a = tl.program_id(0)
    k = tl.arange(0, PLACES)
    heard = tl.load(heard_ptr + a * K + k, mask=k < K, other=0) != 0
    smaller = tl.zeros([PLACES], tl.float64)
    chance = tl.zeros([PLACES], tl.float64)
    for layer in range(L):
        mine = tl.load(own_ptr + a * L + layer).to(tl.float64)
        theirs = tl.load(ones_ptr + k * L + layer, mask=k < K, other=0).to(tl.float64)
        smaller += tl.minimum(mine, theirs)
        chance += mine * theirs / tl.load(sizes_ptr + layer).to(tl.float64)
    apart = smaller - tl.load(both_ptr + a * K + k, mask=k < K, other=0).to(tl.float64)
    distance = apart / tl.maximum(smaller - chance, 1e-9)
    # The rank of each among those heard; of equals the first comes first.
    other, own = distance[None, :], distance[:, None]
    before = (other < own) | ((other == own) & (k[None, :] < k[:, None]))
    rank = tl.sum((before & heard[None, :]).to(tl.int32), 1)
    count = tl.sum(heard.to(tl.int32), 0)
    low = tl.sum(tl.where(heard & (rank == (count - 1) // 2), distance, 0.0), 0)
    high = tl.sum(tl.where(heard & (rank == count // 2), distance, 0.0), 0)
    most = tl.minimum(factor * (0.5 * (low + high)), limit)
    tl.store(out_ptr + a * K + k, heard & (distance <= most), mask=k < K)
