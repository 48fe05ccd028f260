"""Triton kernels of the selection: the keep-th largest magnitude of every agent's every layer.

A sorted sample gives a bracket that holds the answer all but surely; one pass over the data counts what lies above
it and gathers what lies inside, a few percent; among those the answer is found bit by bit. Should a bracket miss,
the same search runs over the whole row, so the result is exact in any case. Bit patterns of non-negative floats
order as the floats do. All layers of all agents go through each launch together.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bracket_kernel(drawn_ptr, keep_ptr, sizes_ptr, low_ptr, high_ptr, L, SIGMAS: tl.constexpr, SAMPLE: tl.constexpr):
    """Two entries of the sample, sorted downwards, between which the threshold lies; small layers are taken whole."""
    row = tl.program_id(0).to(tl.int64)
    size = tl.load(sizes_ptr + row % L).to(tl.float32)
    share = tl.load(keep_ptr + row).to(tl.float32) / size
    spread = SIGMAS * tl.sqrt(SAMPLE * share * (1.0 - share)) + 2.0
    first = tl.floor(share * SAMPLE - spread).to(tl.int32)
    last = tl.ceil(share * SAMPLE + spread).to(tl.int32)
    whole = size <= SAMPLE
    above = tl.load(drawn_ptr + row * SAMPLE + tl.maximum(first, 0))
    below = tl.load(drawn_ptr + row * SAMPLE + tl.minimum(last, SAMPLE - 1))
    tl.store(high_ptr + row, tl.where(whole | (first < 0), float("inf"), above))
    tl.store(low_ptr + row, tl.where(whole | (last >= SAMPLE), 0.0, below))


@triton.jit
def gather_kernel(
    x_ptr, blocks_ptr, low_ptr, high_ptr, above_ptr, found_ptr, inside_ptr, rooms_ptr, stride, room, L,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Count entries above the bracket; copy those inside to the layer's room as far as it goes."""
    layer = tl.load(blocks_ptr + 3 * tl.program_id(0))
    start = tl.load(blocks_ptr + 3 * tl.program_id(0) + 1)
    end = tl.load(blocks_ptr + 3 * tl.program_id(0) + 2)
    a = tl.program_id(1).to(tl.int64)
    row = a * L + layer
    i = start + tl.arange(0, BLOCK)
    live = i < end
    x = tl.load(x_ptr + a * stride + i, mask=live, other=0.0)
    high = tl.load(high_ptr + row)
    above = live & (x > high)
    inside = live & (x >= tl.load(low_ptr + row)) & (x <= high)
    tl.atomic_add(above_ptr + row, tl.sum(above.to(tl.int32), 0))
    base = tl.atomic_add(found_ptr + row, tl.sum(inside.to(tl.int32), 0))
    place = base + tl.cumsum(inside.to(tl.int32), 0) - 1
    first = tl.load(rooms_ptr + 2 * layer)
    size = tl.load(rooms_ptr + 2 * layer + 1)
    tl.store(inside_ptr + a * room + first + place, x, mask=inside & (place < size))


@triton.jit
def threshold_kernel(
    x_ptr, inside_ptr, spans_ptr, rooms_ptr, keep_ptr, above_ptr, found_ptr, threshold_ptr, left_ptr, excess_ptr,
    stride, room, L, BLOCK: tl.constexpr,
):  # fmt: skip
    """The bits of the keep-th largest, how many of those equal to it stay, and how many are too many."""
    layer = tl.program_id(0)
    a = tl.program_id(1).to(tl.int64)
    row = a * L + layer
    start = tl.load(spans_ptr + 2 * layer)
    count = tl.load(spans_ptr + 2 * layer + 1) - start
    rank = tl.load(keep_ptr + row)
    found = tl.load(found_ptr + row)
    within = rank - tl.load(above_ptr + row)
    caught = (within >= 1) & (within <= found) & (found <= tl.load(rooms_ptr + 2 * layer + 1))
    ptr = x_ptr + a * stride + start
    if caught:
        ptr = inside_ptr + a * room + tl.load(rooms_ptr + 2 * layer)
        count = found
        rank = within
    prefix = rank * 0
    for digit in range(11):  # 31 bits: ten times three, then the last
        shift = tl.maximum(28 - 3 * digit, 0)
        n1 = tl.zeros([BLOCK], tl.int32)
        n2 = tl.zeros([BLOCK], tl.int32)
        n3 = tl.zeros([BLOCK], tl.int32)
        n4 = tl.zeros([BLOCK], tl.int32)
        n5 = tl.zeros([BLOCK], tl.int32)
        n6 = tl.zeros([BLOCK], tl.int32)
        n7 = tl.zeros([BLOCK], tl.int32)
        for at in range(0, count, BLOCK):
            i = at + tl.arange(0, BLOCK)
            bits = tl.load(ptr + i, mask=i < count, other=0.0).to(tl.int32, bitcast=True)
            bits = tl.where(i < count, bits, -1) - prefix
            n1 += (bits >= (1 << shift)).to(tl.int32)
            n2 += (bits >= (2 << shift)).to(tl.int32)
            n3 += (bits >= (3 << shift)).to(tl.int32)
            n4 += (bits >= (4 << shift)).to(tl.int32)
            n5 += (bits >= (5 << shift)).to(tl.int32)
            n6 += (bits >= (6 << shift)).to(tl.int32)
            n7 += (bits >= (7 << shift)).to(tl.int32)
        step = (tl.sum(n1, 0) >= rank).to(tl.int32) + (tl.sum(n2, 0) >= rank).to(tl.int32)
        step += (tl.sum(n3, 0) >= rank).to(tl.int32) + (tl.sum(n4, 0) >= rank).to(tl.int32)
        step += (tl.sum(n5, 0) >= rank).to(tl.int32) + (tl.sum(n6, 0) >= rank).to(tl.int32)
        step += (tl.sum(n7, 0) >= rank).to(tl.int32)
        prefix += step << shift
    more = tl.zeros([BLOCK], tl.int32)
    same = tl.zeros([BLOCK], tl.int32)
    for at in range(0, count, BLOCK):
        i = at + tl.arange(0, BLOCK)
        bits = tl.load(ptr + i, mask=i < count, other=0.0).to(tl.int32, bitcast=True)
        more += ((i < count) & (bits > prefix)).to(tl.int32)
        same += ((i < count) & (bits == prefix)).to(tl.int32)
    left = rank - tl.sum(more, 0)
    tl.store(threshold_ptr + row, prefix)
    tl.store(left_ptr + row, left)
    tl.store(excess_ptr + row, tl.sum(same, 0) - left)


@triton.jit
def mask_kernel(x_ptr, blocks_ptr, threshold_ptr, mask_ptr, stride, width, L, BLOCK: tl.constexpr):
    layer = tl.load(blocks_ptr + 3 * tl.program_id(0))
    start = tl.load(blocks_ptr + 3 * tl.program_id(0) + 1)
    end = tl.load(blocks_ptr + 3 * tl.program_id(0) + 2)
    a = tl.program_id(1).to(tl.int64)
    i = start + tl.arange(0, BLOCK)
    bits = tl.load(x_ptr + a * stride + i, mask=i < end, other=0.0).to(tl.int32, bitcast=True)
    tl.store(mask_ptr + a * width + i, (bits >= tl.load(threshold_ptr + a * L + layer)).to(tl.uint8), mask=i < end)


@triton.jit
def tie_kernel(x_ptr, spans_ptr, threshold_ptr, left_ptr, excess_ptr, mask_ptr, stride, width, L, BLOCK: tl.constexpr):
    """Where more entries equal the threshold than may stay, the later ones go. Almost always there are none."""
    layer = tl.program_id(0)
    a = tl.program_id(1).to(tl.int64)
    row = a * L + layer
    start = tl.load(spans_ptr + 2 * layer)
    end = tl.load(spans_ptr + 2 * layer + 1)
    end = tl.where(tl.load(excess_ptr + row) > 0, end, start)
    threshold = tl.load(threshold_ptr + row)
    left = tl.load(left_ptr + row)
    seen = tl.zeros([1], tl.int32)
    for at in range(start, end, BLOCK):
        i = at + tl.arange(0, BLOCK)
        bits = tl.load(x_ptr + a * stride + i, mask=i < end, other=0.0).to(tl.int32, bitcast=True)
        tied = (i < end) & (bits == threshold)
        rank = seen + tl.cumsum(tied.to(tl.int32), 0)
        tl.store(mask_ptr + a * width + i, tl.zeros([BLOCK], tl.uint8), mask=tied & (rank > left))
        seen += tl.sum(tied.to(tl.int32), 0)
