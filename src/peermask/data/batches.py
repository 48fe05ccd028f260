"""Batches: which of its samples an agent trains on in a step, whatever the order agents are computed in."""

from __future__ import annotations

from peermask.data.partition import Indices
from peermask.streams import stream


def batch_indices(samples: Indices, size: int, seed: int, agent: int, round: int, step: int = 0) -> Indices:
    """The first `size` of a fresh shuffle (all, if there are fewer): without replacement inside a batch, with
    replacement across rounds."""
    order = stream(seed, "batch", agent, round, step).permutation(len(samples))
    return samples[order[:size]]  # [min(size, n)]
