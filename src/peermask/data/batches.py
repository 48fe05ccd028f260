"""Batches: which of its samples an agent trains on in a step, whatever the order agents are computed in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peermask.data.partition import Indices
from peermask.streams import stream


def batch_indices(samples: Indices, size: int, seed: int, agent: int, round: int, step: int = 0) -> Indices:
    """The first `size` of a fresh shuffle (all, if there are fewer): without replacement inside a batch, with
    replacement across rounds."""
    keys = stream(seed, "batch", agent, round, step).raw(len(samples))  # [n]
    return samples[smallest(keys, size)]  # [min(size, n)]


def smallest(keys: NDArray[np.uint64], count: int) -> Indices:
    """Where the `count` smallest keys are, in their order: the start of `Stream.permutation`, without sorting the rest.

    Of equal keys the first comes first, also at the edge.
    """
    if count >= len(keys):
        return np.argsort(keys, kind="stable")  # [n]
    edge = np.partition(keys, count - 1)[count - 1]
    near = np.flatnonzero(keys <= edge)  # in rising order, so that a stable sort leaves equal keys in theirs
    return near[np.argsort(keys[near], kind="stable")[:count]]  # [count]
