"""Triton kernels for flips by class: their length on the wire, and the history after them (wire/history.py).

A weight's class follows from its layer and state. Within a class weights are numbered in order, and flips are written
as the gaps between their numbers, or between those of the others where flips are more.

states   [A, P]: what the receivers know of each weight
classes  [A, LAYERS, STATES]: the class of each state
sizes    [A, CLASSES]: weights of each class
frames   [A]: since the keyframe
inside   [A, BLOCKS, CLASSES, 2]: for each block weights of each class, and flips; then weights of all blocks before
flipped  [A, CLASSES]: flips of each class
found    [A, BLOCKS, CLASSES, 3]: for each block the high parts of gaps inside it, its first rare number, its last
lengths  [A, CLASSES, 2]: bytes of a class's entry in the table, and bits after the table
"""

from __future__ import annotations

import triton
import triton.language as tl

from peermask.kernels.blocks_triton import own_block, own_row
from peermask.kernels.gaps_triton import NOWHERE, larger, rice_parameter, shorter_code

STATES = tl.constexpr(256)
CLASSES = tl.constexpr(32)
BINS = tl.constexpr(64)  # of a histogram of classes; the upper half is for what is outside of a block
OLDEST = tl.constexpr(7)
MOST_FLIPS = tl.constexpr(15)
WEIGHT = tl.constexpr(16)
FADE = tl.constexpr(3)
ENOUGH = tl.constexpr(512)
UNKNOWN = tl.constexpr(4)


@triton.jit
def state_and_flip(states_ptr, row_ptr, i, valid):
    state = tl.load(states_ptr + i, mask=valid, other=0).to(tl.int32)
    bit = tl.load(row_ptr + i, mask=valid, other=0).to(tl.int32)
    return state, ((state & 1) != bit) & valid


@triton.jit(do_not_specialize=["stride", "P", "LAYERS", "BLOCKS"])
def inside_kernel(
    row_ptr, states_ptr, classes_ptr, blocks_ptr, inside_ptr, stride, P, LAYERS, BLOCKS,
    IN_LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    layer, start, end = own_block(blocks_ptr, IN_LINES)
    a = tl.program_id(1).to(tl.int64)
    i = start + tl.arange(0, BLOCK)
    here = i < end
    state, flip = state_and_flip(states_ptr + own_row(P, IN_LINES), row_ptr + own_row(stride, IN_LINES), i, here)
    own = tl.load(classes_ptr + (a * LAYERS + layer) * STATES + state, mask=here, other=CLASSES).to(tl.int32)
    weights = tl.histogram(own, BINS)
    flips = tl.histogram(tl.where(flip, own, CLASSES), BINS)
    c = tl.arange(0, BINS)
    inside = inside_ptr + ((a * BLOCKS + tl.program_id(0)) * CLASSES + c) * 2
    tl.store(inside, weights, mask=c < CLASSES)
    tl.store(inside + 1, flips, mask=c < CLASSES)


@triton.jit(do_not_specialize=["BLOCKS"])
def before_kernel(inside_ptr, flipped_ptr, BLOCKS, AT_ONCE: tl.constexpr):
    """Weights of each class in each block become weights in all blocks before; flips are added up."""
    a = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, CLASSES)
    so_far = tl.zeros([CLASSES], tl.int32)
    flipped = tl.zeros([CLASSES], tl.int32)
    for at in range(0, BLOCKS, AT_ONCE):
        b = at + tl.arange(0, AT_ONCE)
        inside = inside_ptr + ((a * BLOCKS + b)[:, None] * CLASSES + c[None, :]) * 2
        weights = tl.load(inside, mask=(b < BLOCKS)[:, None], other=0)
        flipped += tl.sum(tl.load(inside + 1, mask=(b < BLOCKS)[:, None], other=0), 0)
        tl.store(inside, so_far[None, :] + tl.cumsum(weights, 0) - weights, mask=(b < BLOCKS)[:, None])
        so_far += tl.sum(weights, 0)
    tl.store(flipped_ptr + a * CLASSES + c, flipped)


@triton.jit(do_not_specialize=["stride", "P", "LAYERS", "BLOCKS"])
def class_gaps_kernel(
    row_ptr, states_ptr, classes_ptr, sizes_ptr, flipped_ptr, blocks_ptr, inside_ptr, found_ptr, stride, P, LAYERS,
    BLOCKS, IN_LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gaps between the rarer symbols of each class in a block; a block without such of a class is passed over."""
    layer, start, end = own_block(blocks_ptr, IN_LINES)
    a = tl.program_id(1).to(tl.int64)
    i = start + tl.arange(0, BLOCK)
    here = i < end
    after = here & (i > start)
    classes = classes_ptr + (a * LAYERS + layer) * STATES
    states_ptr += own_row(P, IN_LINES)
    row_ptr += own_row(stride, IN_LINES)
    state, flip = state_and_flip(states_ptr, row_ptr, i, here)
    own = tl.load(classes + state, mask=here, other=CLASSES).to(tl.int32)
    state_below, flip_below = state_and_flip(states_ptr, row_ptr, i - 1, after)
    below = tl.load(classes + state_below, mask=after, other=CLASSES).to(tl.int32)
    inside = inside_ptr + (a * BLOCKS + tl.program_id(0)) * CLASSES * 2
    found = found_ptr + (a * BLOCKS + tl.program_id(0)) * CLASSES * 3
    for c in range(CLASSES):
        size = tl.load(sizes_ptr + a * CLASSES + c)
        flips = tl.load(flipped_ptr + a * CLASSES + c)
        flips_here = tl.load(inside + 2 * c + 1)
        others_rarer = 2 * flips > size
        high = flips * 0
        first = flips * 0 + NOWHERE
        last = flips * 0 - 1
        if (flips_here > 0) | others_rarer:
            k = rice_parameter(tl.minimum(flips, size - flips), size)
            member = (own == c).to(tl.int32)
            # The number in its class of an entry is `number - 1`; that of the entry below it, less its own.
            number = tl.load(inside + 2 * c) + tl.cumsum(member, 0)
            rare = (own == c) & (flip != others_rarer)
            rare_below = (below == c) & (flip_below != others_rarer)
            previous = tl.associative_scan(tl.where(rare_below, number - member - 1, -1), 0, larger)
            high = tl.sum(tl.where(rare & (previous >= 0), (number - previous - 2) >> k, 0), 0)
            first = tl.min(tl.where(rare, number - 1, NOWHERE), 0)
            last = tl.max(tl.where(rare, number - 1, -1), 0)
        tl.store(found + 3 * c, high)
        tl.store(found + 3 * c + 1, first)
        tl.store(found + 3 * c + 2, last)


@triton.jit(do_not_specialize=["BLOCKS"])
def class_kernel(sizes_ptr, flipped_ptr, found_ptr, lengths_ptr, BLOCKS, BLOCK: tl.constexpr):
    """Bits of an agent's class: the gaps of its blocks, those between blocks, and the choice of `plan_layer`."""
    c = tl.program_id(0)
    a = tl.program_id(1).to(tl.int64)
    size = tl.load(sizes_ptr + a * CLASSES + c)
    flips = tl.load(flipped_ptr + a * CLASSES + c)
    count = tl.minimum(flips, size - flips)
    k = rice_parameter(count, size)
    before = flips * 0 - 1  # the last rare number of all blocks before
    high = flips * 0
    for at in range(0, BLOCKS, BLOCK):
        b = at + tl.arange(0, BLOCK)
        found = found_ptr + ((a * BLOCKS + b) * CLASSES + c) * 3
        opening = tl.load(found + 1, mask=b < BLOCKS, other=NOWHERE)
        last = tl.load(found + 2 - 3 * CLASSES, mask=(b < BLOCKS) & (b > 0), other=-1)  # of the block before
        previous = tl.maximum(tl.associative_scan(last, 0, larger), before)
        between = tl.where(opening != NOWHERE, (opening - previous - 1) >> k, 0)
        high += tl.sum(between + tl.load(found, mask=b < BLOCKS, other=0), 0)
        before = tl.maximum(before, tl.max(last, 0))
    entry, bits = shorter_code(high, count, size, k)
    lengths = lengths_ptr + (a * CLASSES + c) * 2
    tl.store(lengths, tl.where(size == 0, 0, entry))
    tl.store(lengths + 1, bits)


@triton.jit(do_not_specialize=["P", "stride", "LAYERS"])
def states_kernel(
    row_ptr, states_ptr, frames_ptr, new_ptr, blocks_ptr, flips_ptr, stride, P, LAYERS,
    IN_LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Every weight's state after a frame, and the flips of each layer and state."""
    layer, start, end = own_block(blocks_ptr, IN_LINES)
    a = tl.program_id(1).to(tl.int64)
    frame = tl.load(frames_ptr + a) + 1
    i = start + tl.arange(0, BLOCK)
    here = i < end
    states = own_row(P, IN_LINES)
    state, flip = state_and_flip(states_ptr + states, row_ptr + own_row(stride, IN_LINES), i, here)
    new = tl.where(flip, flipped_state(state), unflipped_state(state, frame))
    tl.store(new_ptr + states + i, new.to(tl.uint8), mask=here)
    tl.atomic_add(flips_ptr + (a * LAYERS + layer) * STATES + state, 1, mask=flip)


@triton.jit
def unflipped_state(state, frame):
    age = (state >> 1) & OLDEST
    period = tl.full(state.shape, 1, tl.int32) << tl.maximum(age - 2, 0)
    return state + 2 * ((age < OLDEST) & (frame % period == 0)).to(tl.int32)


@triton.jit
def flipped_state(state):
    return ((state & 1) ^ 1) | (tl.minimum((state >> 4) + 1, MOST_FLIPS) << 4)


@triton.jit(do_not_specialize=["LAYERS"])
def sums_kernel(weights_ptr, flips_ptr, sums_ptr, frames_ptr, new_weights_ptr, new_sums_ptr, new_frames_ptr, LAYERS):
    """Add a layer's weights and flips [A, LAYERS, STATES] to the sums [A, LAYERS, 2, STATES], the weights in each
    state afterwards, and the number of frames."""
    at = tl.program_id(0).to(tl.int64)
    a = at // LAYERS
    frame = tl.load(frames_ptr + a) + 1
    tl.store(new_frames_ptr + a, frame)  # every layer stores the same
    s = tl.arange(0, STATES)
    weights = tl.load(weights_ptr + at * STATES + s)
    flips = tl.load(flips_ptr + at * STATES + s)
    sums = sums_ptr + at * STATES * 2 + s
    seen = tl.load(sums)
    flipped = tl.load(sums + STATES)
    new_sums = new_sums_ptr + at * STATES * 2 + s
    tl.store(new_sums, seen - (seen >> FADE) + WEIGHT * weights.to(tl.int64))
    tl.store(new_sums + STATES, flipped - (flipped >> FADE) + WEIGHT * flips.to(tl.int64))
    tl.atomic_add(new_weights_ptr + at * STATES + unflipped_state(s, frame), weights - flips)
    tl.atomic_add(new_weights_ptr + at * STATES + flipped_state(s), flips)


@triton.jit(do_not_specialize=["LAYERS"])
def classes_kernel(weights_ptr, sums_ptr, frames_ptr, classes_ptr, sizes_ptr, LAYERS):
    """The class of each layer and state from the sums, and how many weights each class has. Before the first flips a
    class is a layer."""
    a = tl.program_id(0).to(tl.int64)
    frames = tl.load(frames_ptr + a)
    s = tl.arange(0, STATES)
    c = tl.arange(0, CLASSES)
    all_seen = tl.zeros([STATES], tl.int64)
    all_flipped = tl.zeros([STATES], tl.int64)
    for layer in range(LAYERS):
        sums = sums_ptr + (a * LAYERS + layer) * STATES * 2 + s
        all_seen += tl.load(sums)
        all_flipped += tl.load(sums + STATES)
    sizes = tl.zeros([STATES, CLASSES], tl.int32)
    for layer in range(LAYERS):
        sums = sums_ptr + (a * LAYERS + layer) * STATES * 2 + s
        seen = tl.load(sums)
        enough = seen >= ENOUGH
        flipped = tl.where(enough, tl.load(sums + STATES), all_flipped)
        seen = tl.where(enough, seen, all_seen)
        ratio = seen // tl.maximum(flipped, 1)
        octave = tl.zeros([STATES], tl.int32)
        power = ratio * 0 + 1
        for _ in range(1, CLASSES):
            power *= 2
            octave += (ratio >= power).to(tl.int32)
        own = tl.where(seen >= ENOUGH, octave, UNKNOWN)
        own = tl.where(frames == 0, tl.minimum(layer, CLASSES - 1), own)
        tl.store(classes_ptr + (a * LAYERS + layer) * STATES + s, own.to(tl.uint8))
        weights = tl.load(weights_ptr + (a * LAYERS + layer) * STATES + s)
        sizes += tl.where(own[:, None] == c[None, :], weights[:, None], 0)
    tl.store(sizes_ptr + a * CLASSES + c, tl.sum(sizes, 0))
