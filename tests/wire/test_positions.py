"""Positions of ones against NumPy's own."""

from __future__ import annotations

import numpy as np
import pytest

from peermask.wire.bits import positions


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 800, 5_003])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.09, 0.5, 1.0])
def test_they_are_those_of_numpy(size: int, share: float) -> None:
    mask = np.random.default_rng(size).random(size) < share
    assert positions(mask).tolist() == np.flatnonzero(mask).tolist()
    assert positions(mask[3:]).tolist() == np.flatnonzero(mask[3:]).tolist()  # memory that is not aligned
    assert positions(mask[::2]).tolist() == np.flatnonzero(mask[::2]).tolist()  # nor in one piece
