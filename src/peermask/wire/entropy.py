"""Entropy bounds: what a perfect code for independent bits would need, knowing each layer's density.

bound = sum_l n_l H2(k_l / n_l) / 8 bytes,   H2(p) = -p log2 p - (1 - p) log2 (1 - p)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from peermask.wire.sets import Mask, slices


def binary_entropy(p: float) -> float:
    """H2(p) in bits."""
    if p in (0.0, 1.0):
        return 0.0
    return float(-p * np.log2(p) - (1 - p) * np.log2(1 - p))


def entropy_bound(members: Mask, layers: Sequence[int]) -> float:
    """Bytes for a whole mask, or for flips where `members` are flips."""
    bits = sum(
        members[part].size * binary_entropy(np.count_nonzero(members[part]) / members[part].size)
        for part in slices(layers)
    )
    return bits / 8
