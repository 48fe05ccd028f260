"""Triton kernels without a GPU: `TRITON_INTERPRET=1` has them interpreted, on tensors of the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Skips a test where kernels cannot be interpreted: `make test-kernels` has all it needs."""
    if find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton, and TRITON_INTERPRET=1 in the environment: make test-kernels")
    with np.errstate(over="ignore", invalid="ignore"):  # of numbers that a kernel computes and does not select
        yield
