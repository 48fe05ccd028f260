"""Apportionment: whole numbers in given proportions that sum to exactly a total."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def apportion(total: int, weights: ArrayLike) -> NDArray[np.int64]:
    """Each share of `total` rounded down; what is left goes to the largest remainders, ties to the first."""
    shares = np.asarray(weights, dtype=np.float64)
    exact = total * shares / shares.sum()
    whole: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: total - whole.sum()]] += 1
    return whole  # [len(weights)]
