"""Triton kernels for the length of frames: how many members each layer of each set has, and how far apart they are.

A set is what a mask keeps, or where values are not +0.0; SETS is 1, or 2 where values of before are held, whose flips
are the second. Flips of masks are counted by class (contexts_triton.py). A layer is written as gaps in Rice's code or
as plain bits, whichever is shorter (wire/sets.py). All leaves of a payload lie one after another in the tables: LAYERS
and BLOCKS are those of all leaves.

counts   [A, WIDTH]: for each layer members of both sets and values that are not 0; then for each leaf by each leaf how
         many of its members lie outside of the other, a mask
found    [A, BLOCKS, SETS, 3]: for each block the high parts of gaps inside it, its first member, its last
lengths  [A, LAYERS, SETS, 2]: bytes of a layer's entry in the table, and bits after the table
deltas   [A, LEAVES, CLASSES, 2]: the same of a mask's flips by class, where DELTAS
"""

from __future__ import annotations

import triton
import triton.language as tl

from peermask.kernels.blocks_triton import own_block, own_row

CLASSES = tl.constexpr(32)
NOWHERE = tl.constexpr(2**31 - 1)  # the first member of a block without one; its last is -1


@triton.jit
def members_at(row_ptr, i, valid):
    return tl.load(row_ptr + i, mask=valid, other=0) != 0


@triton.jit
def rice_parameter(count, size):
    """The parameter of wire/sets.py; floor(log2) is a count of the powers of two that fit."""
    ratio = 77 * (2 * size.to(tl.int64) - count) // (160 * tl.maximum(count, 1).to(tl.int64))
    powers = tl.full([32], 2, tl.int64) << tl.arange(0, 32).to(tl.int64)
    return tl.sum((ratio >= powers).to(tl.int32), 0)


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def shorter_code(high, count, size, k):
    """The choice of `plan_layer`: bytes of the entry, and bits of gaps or one for each weight."""
    gaps = high + count.to(tl.int64) * (1 + k)
    entry = 2 + (count >= 1 << 7).to(tl.int32) + (count >= 1 << 14).to(tl.int32)
    entry += (count >= 1 << 21).to(tl.int32) + (count >= 1 << 28).to(tl.int32)
    shorter = (8 * entry + gaps < 8 + size) & (count > 0)
    return tl.where(shorter, entry, 1), tl.where(shorter, gaps, tl.where(count > 0, size, 0)).to(tl.int32)


@triton.jit(do_not_specialize=["stride", "base_stride", "first_layer", "WIDTH"])
def count_kernel(
    row_ptr, base_ptr, blocks_ptr, counts_ptr, stride, base_stride, first_layer, WIDTH,
    VALUES: tl.constexpr, SETS: tl.constexpr, IN_LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    layer, start, end = own_block(blocks_ptr, IN_LINES)
    layer += first_layer
    a = tl.program_id(1).to(tl.int64)
    i = start + tl.arange(0, BLOCK)
    counts = counts_ptr + a * WIDTH + 3 * layer
    bits = tl.load(row_ptr + own_row(stride, IN_LINES) + i, mask=i < end, other=0)
    tl.atomic_add(counts, tl.sum((bits != 0).to(tl.int32), 0))
    if SETS == 2:
        flips = (bits != 0) != members_at(base_ptr + own_row(base_stride, IN_LINES), i, i < end)
        tl.atomic_add(counts + 1, tl.sum(flips.to(tl.int32), 0))
    if VALUES:
        tl.atomic_add(counts + 2, tl.sum(((bits & 0x7FFFFFFF) != 0).to(tl.int32), 0))  # -0.0 is 0


@triton.jit(do_not_specialize=["stride", "mask_stride", "place", "WIDTH"])
def outside_kernel(
    row_ptr, mask_ptr, blocks_ptr, counts_ptr, stride, mask_stride, place, WIDTH,
    IN_LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _, start, end = own_block(blocks_ptr, IN_LINES)
    a = tl.program_id(1).to(tl.int64)
    i = start + tl.arange(0, BLOCK)
    outside = members_at(row_ptr + own_row(stride, IN_LINES), i, i < end)
    outside &= ~members_at(mask_ptr + own_row(mask_stride, IN_LINES), i, i < end)
    tl.atomic_add(counts_ptr + a * WIDTH + place, tl.sum(outside.to(tl.int32), 0))


@triton.jit(do_not_specialize=["stride", "base_stride", "first_layer", "first_block", "WIDTH", "BLOCKS"])
def gaps_kernel(
    row_ptr, base_ptr, blocks_ptr, layers_ptr, counts_ptr, found_ptr, stride, base_stride, first_layer, first_block,
    WIDTH, BLOCKS, SETS: tl.constexpr, IN_LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gaps between the rarer symbols of a block; the gap before its first reaches into blocks before."""
    layer, start, end = own_block(blocks_ptr, IN_LINES)
    layer += first_layer
    a = tl.program_id(1).to(tl.int64)
    size = tl.load(layers_ptr + 4 * layer + 3)
    i = start + tl.arange(0, BLOCK)
    here = i < end
    after = here & (i > start)
    row_ptr += own_row(stride, IN_LINES)
    base_ptr += own_row(base_stride, IN_LINES)
    members = members_at(row_ptr, i, here)
    below = members_at(row_ptr, i - 1, after)
    found = found_ptr + (a * BLOCKS + first_block + tl.program_id(0)) * (3 * SETS)
    for flips in tl.static_range(SETS):
        if flips == 1:
            members = members != members_at(base_ptr, i, here)
            below = below != members_at(base_ptr, i - 1, after)
        ones = tl.load(counts_ptr + a * WIDTH + 3 * layer + flips)
        zeros_are_rarer = 2 * ones > size
        k = rice_parameter(tl.minimum(ones, size - ones), size)
        rare = (members != zeros_are_rarer) & here
        previous = tl.associative_scan(tl.where((below != zeros_are_rarer) & after, i - 1, -1), 0, larger)
        high = tl.where(rare & (previous >= 0), (i - previous - 1) >> k, 0)
        tl.store(found + 3 * flips, tl.sum(high, 0))
        tl.store(found + 3 * flips + 1, tl.min(tl.where(rare, i, NOWHERE), 0))
        tl.store(found + 3 * flips + 2, tl.max(tl.where(rare, i, -1), 0))


@triton.jit(do_not_specialize=["LAYERS", "WIDTH", "BLOCKS"])
def layer_kernel(
    layers_ptr, counts_ptr, found_ptr, lengths_ptr, LAYERS, WIDTH, BLOCKS, SETS: tl.constexpr, BLOCK: tl.constexpr
):
    """Bits of an agent's layer: the gaps of its blocks, those between blocks, and the choice of `plan_layer`."""
    layer = tl.program_id(0)
    a = tl.program_id(1).to(tl.int64)
    first = tl.load(layers_ptr + 4 * layer)
    end = tl.load(layers_ptr + 4 * layer + 1)
    start = tl.load(layers_ptr + 4 * layer + 2)
    size = tl.load(layers_ptr + 4 * layer + 3)
    for flips in tl.static_range(SETS):
        ones = tl.load(counts_ptr + a * WIDTH + 3 * layer + flips)
        count = tl.minimum(ones, size - ones)
        k = rice_parameter(count, size)
        before = start - 1  # the last member of all blocks before
        high = start * 0
        for at in range(first, end, BLOCK):
            b = at + tl.arange(0, BLOCK)
            found = found_ptr + (a * BLOCKS + b) * (3 * SETS) + 3 * flips
            opening = tl.load(found + 1, mask=b < end, other=NOWHERE)
            # The place before `found` in memory is the same of the block before.
            last = tl.load(found + 2 - 3 * SETS, mask=(b < end) & (b > first), other=-1)
            previous = tl.maximum(tl.associative_scan(last, 0, larger), before)
            between = tl.where(opening != NOWHERE, (opening - previous - 1) >> k, 0)
            high += tl.sum(between + tl.load(found, mask=b < end, other=0), 0)
            before = tl.maximum(before, tl.max(last, 0))
        entry, bits = shorter_code(high, count, size, k)
        lengths = lengths_ptr + ((a * LAYERS + layer) * SETS + flips) * 2
        tl.store(lengths, entry)
        tl.store(lengths + 1, bits)


@triton.jit
def total_of(counts_ptr, first, end, BLOCK: tl.constexpr):
    """A count of all layers of a leaf."""
    total = tl.zeros([BLOCK], tl.int64)
    for at in range(first, end, BLOCK):
        i = at + tl.arange(0, BLOCK)
        total += tl.load(counts_ptr + 3 * i, mask=i < end, other=0)
    return tl.sum(total, 0)


@triton.jit
def entropy_bits(ones, size):
    """n H2(k / n)."""
    p = ones.to(tl.float64) / size.to(tl.float64)
    q = 1.0 - p
    of_ones = tl.where(p > 0.0, p * tl.log2(tl.where(p > 0.0, p, 1.0)), 0.0)
    of_zeros = tl.where(q > 0.0, q * tl.log2(tl.where(q > 0.0, q, 1.0)), 0.0)
    return -(of_ones + of_zeros) * size.to(tl.float64)


@triton.jit
def set_bytes(lengths_ptr, first, end, flips, SETS: tl.constexpr, BLOCK: tl.constexpr):
    """`SetPlan.size`: the entries of all layers, and all their bits filled up to a whole byte once."""
    entries = tl.zeros([BLOCK], tl.int64)
    bits = tl.zeros([BLOCK], tl.int64)
    for at in range(first, end, BLOCK):
        i = at + tl.arange(0, BLOCK)
        lengths = lengths_ptr + (i * SETS + flips) * 2
        entries += tl.load(lengths, mask=i < end, other=0)
        bits += tl.load(lengths + 1, mask=i < end, other=0)
    return tl.sum(entries, 0) + (tl.sum(bits, 0) + 7) // 8


@triton.jit(do_not_specialize=["LEAVES", "LAYERS", "WIDTH"])
def frame_kernel(
    leaves_ptr, layers_ptr, counts_ptr, lengths_ptr, deltas_ptr, whole_ptr, entropy_ptr, LEAVES, LAYERS, WIDTH,
    FRAME: tl.constexpr, SETS: tl.constexpr, DELTAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One agent's frame: bits of ones and values, bytes of the codec, whether it is a delta, and the bound in bytes."""
    a = tl.program_id(0).to(tl.int64)
    counts = counts_ptr + a * WIDTH
    lengths = lengths_ptr + a * LAYERS * (2 * SETS)
    coded = a * 0 + FRAME
    ones = a * 0
    is_delta = a != a
    entropy = ones.to(tl.float64)
    for leaf in range(LEAVES):
        is_mask = tl.load(leaves_ptr + 4 * leaf) != 0
        first = tl.load(leaves_ptr + 4 * leaf + 1)
        end = tl.load(leaves_ptr + 4 * leaf + 2)
        size = tl.load(leaves_ptr + 4 * leaf + 3)
        positions = set_bytes(lengths, first, end, 0, SETS, BLOCK)
        members = total_of(counts, first, end, BLOCK)
        if is_mask:
            if DELTAS:
                by_class = deltas_ptr + ((a * LEAVES + leaf) * CLASSES + tl.arange(0, CLASSES)) * 2
                flips = (
                    tl.sum(tl.load(by_class).to(tl.int64), 0) + (tl.sum(tl.load(by_class + 1).to(tl.int64), 0) + 7) // 8
                )
                is_delta |= is_mask  # it continues the history, even if the mask is sent whole
                positions = tl.minimum(positions, flips)
            coded += 1 + positions
            ones += members
            for at in range(first, end, BLOCK):
                i = at + tl.arange(0, BLOCK)
                kept = tl.load(counts + 3 * i, mask=i < end, other=0)
                cut = tl.load(layers_ptr + 4 * i + 3, mask=i < end, other=1)
                entropy += tl.sum(entropy_bits(kept, cut), 0) / 8.0
        else:
            changed = a != a
            if SETS == 2:
                support = set_bytes(lengths, first, end, 1, SETS, BLOCK)
                changed = support < positions
                positions = tl.minimum(positions, support)
            best = 4 * size.to(tl.int64)
            changed &= positions + 4 * members < best
            best = tl.minimum(best, positions + 4 * members)
            for other in range(LEAVES):
                fits = (tl.load(leaves_ptr + 4 * other) != 0) & (tl.load(leaves_ptr + 4 * other + 3) == size)
                fits &= tl.load(counts + 3 * LAYERS + leaf * LEAVES + other) == 0
                mask_first = tl.load(leaves_ptr + 4 * other + 1)
                kept = total_of(counts, mask_first, tl.load(leaves_ptr + 4 * other + 2), BLOCK)
                fits &= 1 + 4 * kept < best
                changed &= ~fits
                best = tl.where(fits, 1 + 4 * kept, best)
            values = total_of(counts + 2, first, end, BLOCK)
            is_delta |= changed
            coded += 1 + best
            ones += 32 * values
            entropy += entropy_bits(values, size) / 8.0 + 4.0 * values.to(tl.float64)
    tl.store(whole_ptr + a, ones)
    tl.store(whole_ptr + tl.num_programs(0) + a, coded)
    tl.store(whole_ptr + 2 * tl.num_programs(0) + a, is_delta.to(tl.int64))
    tl.store(entropy_ptr + a, entropy)
