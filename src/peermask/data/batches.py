"""Batches: which of its samples an agent trains on in a step, in any order of computing agents."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from peermask.data.partition import Indices
from peermask.streams import raw_of_each


def batch_rows(
    samples: Sequence[Indices], size: int, seed: int, agents: Sequence[int], round: int, step: int = 0
) -> Indices:
    """For each agent the first `size` samples of a new shuffle: without replacement in a batch, with replacement across
    rounds. All rows are as wide as the largest; an agent with fewer samples repeats them."""
    counts = [len(own) for own in samples]
    rows = np.empty((len(counts), min(size, max(counts))), np.int64)
    keys = raw_of_each(seed, "batch", agents, round, step, counts)
    for row, own, drawn in zip(rows, samples, keys, strict=True):
        batch = own[smallest(drawn, size)]
        row[:] = batch if len(batch) == len(row) else np.resize(batch, len(row))
    return rows  # [A, B]


def smallest(keys: NDArray[np.uint64], count: int) -> Indices:
    """Where the `count` smallest keys are, in their order: the start of `Stream.permutation`, without sorting the rest.

    Keys are spread evenly, so that it is known beforehand below which number enough of them lie; should they not,
    all are sorted. Of equal keys the first comes first.
    """
    share = (count + 4 * sqrt(count) + 8) / len(keys)
    if share < 1:
        (near,) = (keys <= np.uint64(share * 2.0**64)).nonzero()
        if len(near) >= count:  # they rise, so that a stable sort leaves equal keys in their order
            return near[keys[near].argsort(kind="stable")[:count]]  # [count]
    return keys.argsort(kind="stable")[:count]  # [min(count, n)]
