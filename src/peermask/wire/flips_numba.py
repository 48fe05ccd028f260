"""Flips of a mask in one pass each: where they are, where among the weights of their class, and what they leave."""

import numpy as np

from peermask.compiled import compiled

EACH = np.uint64(0x0101010101010101)  # 1 in each of eight bytes


@compiled
def differences(old, new):
    """Where two masks differ, uint8 [P] each; most are alike, so that eight are compared at a time."""
    found, count = np.empty(len(old), np.int64), 0
    even = len(old) // 8 * 8
    before, after = old[:even].view(np.uint64), new[:even].view(np.uint64)
    for k in range(len(before)):
        if before[k] != after[k]:
            for n in range(8 * k, 8 * k + 8):
                found[count] = n  # written over by the next if it is none
                count += old[n] != new[n]
    for n in range(even, len(old)):
        found[count] = n
        count += old[n] != new[n]
    return found[:count].copy()


@compiled
def grown(states, age, ages):
    """The states of weights that do not flip: those of at most this age grow older; uint8 [P] -> [P]. `ages` are the
    bits that say how old."""
    after = np.empty_like(states)
    for n in range(len(states)):
        after[n] = states[n] + np.uint8(2) * np.uint8((states[n] & ages) <= age)
    return after


@compiled
def ranks_in_class(states, ends, classes, flipped, count, first):
    """The class of each flip and how many weights of that class are before it: uint8 [P], the layers' ends [L], uint8
    [L, S], rising [F] -> uint8 [F], [F]. There are `count` classes; `first` is the state of a weight that is off
    and has never flipped, one more of one that is on."""
    owner, rank = np.empty(len(flipped), np.uint8), np.empty(len(flipped), np.int64)
    counts = np.zeros(count, np.int64)
    n = f = 0
    for layer in range(len(ends)):
        table = classes[layer]
        while f < len(flipped) and flipped[f] < ends[layer]:
            _count(states, n, flipped[f], table, counts, first)
            n = flipped[f]
            owner[f] = table[states[n]]
            rank[f] = counts[owner[f]]
            f += 1
        _count(states, n, ends[layer], table, counts, first)
        n = ends[layer]
    return owner, rank


@compiled
def _count(states, start, end, table, counts, first):
    """Add the weights from `start` to `end` to the counts of their classes. Most have never flipped, so that eight at
    a time are looked at."""
    even = start + (end - start) // 8 * 8
    never = np.uint64(first + 1) * EACH  # eight weights that are on and have never flipped
    for eight in states[start:even].view(np.uint64):
        if eight | EACH == never:
            ones = np.int64((eight & EACH) * EACH >> np.uint64(56))  # the sum of its bytes
            counts[table[first + 1]] += ones
            counts[table[first]] += 8 - ones
        else:
            for byte in range(8):
                counts[table[eight >> np.uint64(8 * byte) & np.uint64(255)]] += 1
    for state in states[even:end]:
        counts[table[state]] += 1
