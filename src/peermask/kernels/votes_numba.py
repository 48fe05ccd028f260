"""Votes counted, and weighed in on magnitudes, in one pass over memory each."""

import numpy as np

from peermask.compiled import compiled

AT_ONCE = 4096  # entries whose counts stay in a core's first cache


@compiled
def count_rows(votes, senders, out):
    """How many of the senders' rows, of ones and zeros, have a one: uint8 [K, P], [D] -> [P]."""
    for start in range(0, len(out), AT_ONCE):
        part = out[start : start + AT_ONCE]
        part[:] = 0
        for sender in senders:
            row = votes[sender, start : start + AT_ONCE]
            for n in range(len(part)):
                part[n] += row[n]


@compiled
def add_heard(magnitude, scores, votes, voters, gain, means, ends):
    """|z| + mean|z| · gain · votes / voters, and 0 where z is 0, in place of |z|: [P] each, means and ends of
    layers [L]; voters and gain are numbers."""
    start = 0
    for layer, end in enumerate(ends):
        out, own, heard, mean = magnitude[start:end], scores[start:end], votes[start:end], means[layer]
        for n in range(len(out)):  # from 0: an index that might be negative is not vectorised
            added = out[n] + np.float32(heard[n]) / voters * gain * mean
            out[n] = added if own[n] != 0 else np.float32(0)
        start = end
