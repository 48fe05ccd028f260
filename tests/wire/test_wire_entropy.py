"""Entropy bounds, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from peermask.wire import entropy_bound
from peermask.wire.entropy import binary_entropy


@pytest.mark.parametrize(("p", "bits"), [(0.0, 0.0), (1.0, 0.0), (0.5, 1.0), (0.25, 0.811278)])
def test_binary_entropy(p, bits):
    assert binary_entropy(p) == pytest.approx(bits, abs=1e-6)


def test_layers_are_bounded_apart():
    mask = np.array([True] * 8 + [False] * 4 + [True] * 4)
    assert entropy_bound(mask, [8, 8]) == 1.0  # the first layer is certain, the second one bit per weight
    assert entropy_bound(mask, [16]) == pytest.approx(16 * 0.811278 / 8, abs=1e-5)
