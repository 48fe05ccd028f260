"""Triton kernels of the selection, and of the masked model.

The selection finds the keep-th largest magnitude of every layer of every agent. A sample gives a bracket that almost
surely holds the answer. One pass over the data counts the entries above it and gathers those inside, a few percent. A
search among those finds the answer bit by bit. Should a bracket miss, the same search runs over the whole row, so the
result is always exact. Bit patterns of non-negative floats order as the floats do, so everything compares integers. All
layers of all agents go through each launch together.
"""

from __future__ import annotations

import triton
import triton.language as tl

from peermask.kernels.blocks_triton import own_block

STRIDE = tl.constexpr(40503)  # 2**16 over the golden ratio: multiples of it spread evenly, without a period
LAST = tl.constexpr(0x7FFFFFFF)  # no position lies behind it, and no float's bits above it


@triton.jit
def bracket_kernel(
    x_ptr, spans_ptr, keep_ptr, low_ptr, high_ptr, counter_ptr, stride, L,
    SIGMAS: tl.constexpr, SAMPLE: tl.constexpr, COARSE: tl.constexpr,
):  # fmt: skip
    """Two bounds between which the threshold lies, by ranks in a sample; small layers are taken whole.

    One entry is drawn from each of SAMPLE stretches, not at even distances: those meet the same place of every filter.

    Bounds are searched for down to bit COARSE and rounded outwards: the bracket grows by nothing that counts.
    """
    layer = tl.program_id(0)
    a = tl.program_id(1).to(tl.int64)
    row = a * L + layer
    start = tl.load(spans_ptr + 2 * layer)
    size = tl.load(spans_ptr + 2 * layer + 1) - start
    n = tl.arange(0, SAMPLE).to(tl.int64)
    at = start + n * size // SAMPLE + ((n * STRIDE & 0xFFFF) * (size // SAMPLE) >> 16)
    bits = tl.load(x_ptr + a * stride + at).to(tl.int32, bitcast=True)
    share = tl.load(keep_ptr + row).to(tl.float32) / size.to(tl.float32)
    spread = SIGMAS * tl.sqrt(SAMPLE * share * (1.0 - share)) + 2.0
    first = tl.floor(share * SAMPLE - spread).to(tl.int32)  # ranks, the largest being 0
    last = tl.ceil(share * SAMPLE + spread).to(tl.int32)
    high = first * 0
    low = first * 0
    for i in range(31 - COARSE):
        step = 1 << (30 - i)
        # How many reach either bound, in one sum: each count fits in 16 bits.
        reached = (bits >= high + step).to(tl.int32) * 65536 + (bits >= low + step).to(tl.int32)
        counts = tl.sum(reached, 0)
        high += tl.where(((counts >> 16) & 65535) > first, step, 0)
        low += tl.where((counts & 65535) > last, step, 0)
    whole = size <= SAMPLE
    tl.store(high_ptr + row, tl.where(whole | (first < 0), LAST, high + (1 << COARSE) - 1))
    tl.store(low_ptr + row, tl.where(whole | (last >= SAMPLE), 0, low))
    tl.store(counter_ptr + row, row * 0)


@triton.jit
def gather_kernel(
    x_ptr, blocks_ptr, low_ptr, high_ptr, counter_ptr, inside_ptr, place_ptr, rooms_ptr, stride, room, L,
    IN_LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count entries above the bracket; copy those inside to the layer's room as far as it goes, with their positions.

    A row's counter holds both counts, those above in the upper half: one trip to memory for a block.
    """
    layer, start, end = own_block(blocks_ptr, IN_LINES)
    a = tl.program_id(1).to(tl.int64)
    row = a * L + layer
    i = start + tl.arange(0, BLOCK)
    live = i < end
    x = tl.load(x_ptr + a * stride + i, mask=live, other=0.0)
    bits = x.to(tl.int32, bitcast=True)
    high = tl.load(high_ptr + row)
    above = (live & (bits > high)).to(tl.int32)
    inside = live & (bits >= tl.load(low_ptr + row)) & (bits <= high)
    counts = tl.sum(above * 65536 + inside.to(tl.int32), 0)
    before = tl.atomic_add(counter_ptr + row, ((counts >> 16).to(tl.int64) << 32) + (counts & 65535))
    nth = before.to(tl.int32) + tl.cumsum(inside.to(tl.int32), 0) - 1
    to = a * room + tl.load(rooms_ptr + 2 * layer) + nth
    fits = inside & (nth < tl.load(rooms_ptr + 2 * layer + 1))
    tl.store(inside_ptr + to, x, mask=fits)
    tl.store(place_ptr + to, i, mask=fits)


@triton.jit
def keys(x_ptr, place_ptr, at, count, start, listed, tied, TIES: tl.constexpr, BLOCK: tl.constexpr):
    """Keys to rank: bits of entries or, of those whose bits are `tied`, positions, the first being the largest."""
    i = at + tl.arange(0, BLOCK)
    bits = tl.load(x_ptr + i, mask=i < count, other=0.0).to(tl.int32, bitcast=True)
    if TIES:
        place = tl.load(place_ptr + i, mask=i < listed, other=0)
        bits = tl.where(bits == tied, LAST - tl.where(i < listed, place, start + i), -1)
    return tl.where(i < count, bits, -1)


@triton.jit
def nth_largest(
    x_ptr, place_ptr, count, start, listed, tied, rank, least, reach, TIES: tl.constexpr, BLOCK: tl.constexpr
):
    """The rank-th largest key, known to lie in least .. least + reach: three bits with each pass."""
    width = 1
    while (reach >> width) > 0:  # bits in which keys differ; at most 31
        width += 3
    answer = least
    while width > 0:
        shift = tl.maximum(width - 3, 0)
        n1 = tl.zeros([BLOCK], tl.int32)
        n2 = tl.zeros([BLOCK], tl.int32)
        n3 = tl.zeros([BLOCK], tl.int32)
        n4 = tl.zeros([BLOCK], tl.int32)
        n5 = tl.zeros([BLOCK], tl.int32)
        n6 = tl.zeros([BLOCK], tl.int32)
        n7 = tl.zeros([BLOCK], tl.int32)
        for at in range(0, count, BLOCK):
            key = keys(x_ptr, place_ptr, at, count, start, listed, tied, TIES, BLOCK) - answer
            n1 += (key >= (1 << shift)).to(tl.int32)
            n2 += (key >= (2 << shift)).to(tl.int32)
            n3 += (key >= (3 << shift)).to(tl.int32)
            n4 += (key >= (4 << shift)).to(tl.int32)
            n5 += (key >= (5 << shift)).to(tl.int32)
            n6 += (key >= (6 << shift)).to(tl.int32)
            n7 += (key >= (7 << shift)).to(tl.int32)
        step = (tl.sum(n1, 0) >= rank).to(tl.int32) + (tl.sum(n2, 0) >= rank).to(tl.int32)
        step += (tl.sum(n3, 0) >= rank).to(tl.int32) + (tl.sum(n4, 0) >= rank).to(tl.int32)
        step += (tl.sum(n5, 0) >= rank).to(tl.int32) + (tl.sum(n6, 0) >= rank).to(tl.int32)
        step += (tl.sum(n7, 0) >= rank).to(tl.int32)
        answer += step << shift
        width -= 3
    return answer


@triton.jit
def nth_largest_held(bits, rank, least, reach):
    """The same among bits that are in registers, bit by bit."""
    step = least * 0 + 1
    while (reach >> 1) >= step:  # the highest bit in which they differ
        step *= 2
    answer = least
    while step > 0:
        bound = answer + tl.minimum(step, LAST - answer)
        answer += tl.where(tl.sum((bits >= bound).to(tl.int32), 0) >= rank, step, 0)
        step = step >> 1
    return answer


@triton.jit
def threshold_kernel(
    x_ptr, inside_ptr, place_ptr, spans_ptr, rooms_ptr, keep_ptr, low_ptr, high_ptr, counter_ptr, threshold_ptr,
    cut_ptr, stride, room, L, BLOCK: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """The bits of the keep-th largest, and the last position at which an entry equal to it stays."""
    layer = tl.program_id(0)
    a = tl.program_id(1).to(tl.int64)
    row = a * L + layer
    start = tl.load(spans_ptr + 2 * layer)
    size = tl.load(spans_ptr + 2 * layer + 1) - start
    counter = tl.load(counter_ptr + row)
    found = counter.to(tl.int32)
    rank = tl.load(keep_ptr + row).to(tl.int32)
    within = rank - (counter >> 32).to(tl.int32)
    caught = (within >= 1) & (within <= found) & (found <= tl.load(rooms_ptr + 2 * layer + 1))
    first = a * room + tl.load(rooms_ptr + 2 * layer)
    x_ptr += a * stride + start
    count = size
    least = rank * 0
    reach = least + LAST
    if caught:
        x_ptr = inside_ptr + first
        count = found
        rank = within
        least = tl.load(low_ptr + row)
        reach = tl.load(high_ptr + row) - least
    place_ptr += first
    listed = tl.where(caught, found, 0)  # entries whose position is in a list; the others lie in their order
    lowest = LAST - (start + size - 1)  # of the positions as keys
    cut = start * 0 + LAST
    # Of those equal to the threshold the first stay; mostly all may.
    if count <= HELD:
        bits = keys(x_ptr, place_ptr, 0, count, start, listed, rank, False, HELD)
        threshold = nth_largest_held(bits, rank, least, reach)
        left = rank - tl.sum((bits > threshold).to(tl.int32), 0)
        if tl.sum((bits == threshold).to(tl.int32), 0) > left:
            tied = keys(x_ptr, place_ptr, 0, count, start, listed, threshold, True, HELD)
            cut = LAST - nth_largest_held(tied, left, lowest, size)
    else:
        threshold = nth_largest(x_ptr, place_ptr, count, start, listed, rank, rank, least, reach, False, BLOCK)
        more = tl.zeros([BLOCK], tl.int32)
        same = tl.zeros([BLOCK], tl.int32)
        for at in range(0, count, BLOCK):
            bits = keys(x_ptr, place_ptr, at, count, start, listed, rank, False, BLOCK)
            more += (bits > threshold).to(tl.int32)
            same += (bits == threshold).to(tl.int32)
        left = rank - tl.sum(more, 0)
        if tl.sum(same, 0) > left:
            cut = LAST - nth_largest(x_ptr, place_ptr, count, start, listed, threshold, left, lowest, size, True, BLOCK)
    tl.store(threshold_ptr + row, threshold)
    tl.store(cut_ptr + row, cut)


@triton.jit
def mask_kernel(
    x_ptr, blocks_ptr, threshold_ptr, cut_ptr, mask_ptr, stride, width, L, IN_LINES: tl.constexpr, BLOCK: tl.constexpr
):
    layer, start, end = own_block(blocks_ptr, IN_LINES)
    a = tl.program_id(1).to(tl.int64)
    row = a * L + layer
    i = start + tl.arange(0, BLOCK)
    bits = tl.load(x_ptr + a * stride + i, mask=i < end, other=0.0).to(tl.int32, bitcast=True)
    threshold = tl.load(threshold_ptr + row)
    kept = (bits > threshold) | ((bits == threshold) & (i <= tl.load(cut_ptr + row)))
    tl.store(mask_ptr + a * width + i, kept.to(tl.uint8), mask=i < end)


@triton.jit
def masked_model_kernel(mask_ptr, w_ptr, frozen_ptr, out_ptr, w_stride, W, P, BLOCK: tl.constexpr):
    a = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = tl.load(mask_ptr + a * W + i, mask=i < W, other=0).to(tl.float32)
    w = tl.load(w_ptr + a * w_stride + i, mask=i < W, other=0.0)
    rest = tl.load(frozen_ptr + i, mask=(i >= W) & (i < P), other=0.0)
    # A product, not a choice: a negative weight that is not kept is -0, as the reference implementation has it.
    tl.store(out_ptr + a * P + i, tl.where(i < W, m * w, rest), mask=i < P)
