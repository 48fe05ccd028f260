"""The largest entries of a row in a few passes, most of them vectorised.

Floats that are not negative are in the order of their bits as integers; NaN and -0.0 are not.
"""

import numpy as np

from peermask.compiled import compiled

BINS = 1024
INFINITY = np.float32(np.inf).view(np.int32)


@compiled
def top_of_row(bits, keep, low, high, mask):
    """Mark the `keep` largest, or return False if the smallest of these does not lie from `low` to `high`, or if an
    entry is negative or NaN."""
    above, odd = np.int32(0), np.int32(0)
    for n in range(len(bits)):
        above += bits[n] > high
    for n in range(len(bits)):
        odd += (bits[n] < 0) | (bits[n] > INFINITY)
    inside = _between(bits, low, high)
    if odd or not above < keep <= above + len(inside):
        return False
    threshold = _largest(inside, keep - above)
    reached = np.int32(0)
    for n in range(len(bits)):
        mask[n] = bits[n] >= threshold
    for n in range(len(bits)):
        reached += bits[n] >= threshold
    n = len(bits)
    while reached > keep:  # of those equal to the threshold, the last ones go
        n -= 1
        if bits[n] == threshold:
            mask[n] = False
            reached -= 1
    return True


@compiled
def _between(bits, low, high):
    """The entries from `low` to `high`: where eight in a row lie outside, as most do, they are passed over at once."""
    inside = np.empty(len(bits), np.int32)
    is_inside = np.empty(len(bits), np.uint8)
    for n in range(len(bits)):
        is_inside[n] = (bits[n] >= low) & (bits[n] <= high)
    count, even = np.uintp(0), len(bits) // 8 * 8
    eights = is_inside[:even].view(np.uint64)
    for k in range(len(eights)):
        if eights[k]:
            for n in range(8 * k, 8 * k + 8):
                inside[count] = bits[n]  # written over by the next if it lies outside
                count += is_inside[n]
    for n in range(even, len(bits)):
        inside[count] = bits[n]
        count += is_inside[n]
    return inside[:count]


@compiled
def _largest(bits, rank):
    """The `rank`-th largest: all are counted in bins, and its own is sorted."""
    first, last = bits.min(), bits.max()
    shift = 0
    while (last - first) >> shift >= BINS:
        shift += 1
    counts = np.zeros(BINS, np.int64)
    for entry in bits:
        counts[(entry - first) >> shift] += 1
    own = BINS - 1
    while counts[own] < rank:
        rank -= counts[own]
        own -= 1
    ranked = np.sort(bits[(bits - first) >> shift == own])
    return ranked[len(ranked) - rank]
