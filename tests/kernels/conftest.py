"""Where kernels run: interpreted on tensors of a CPU with `TRITON_INTERPRET=1`, or compiled on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Skips a test where kernels cannot be interpreted: `make test-kernels` has all it needs."""
    if find_spec("triton") is None or not INTERPRETED:
        pytest.skip("needs Triton, and TRITON_INTERPRET=1 in the environment: make test-kernels")
    with np.errstate(over="ignore", invalid="ignore"):  # of numbers that a kernel computes and does not select
        yield


@pytest.fixture(params=["interpreted", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """A test that asks for it runs on both; one marked `large` on a GPU alone."""
    if request.param == "interpreted":
        if request.node.get_closest_marker("large"):
            pytest.skip("needs a GPU: too large to interpret")
        request.getfixturevalue("interpreted")
        return torch.device("cpu")
    if INTERPRETED or not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device("cuda")
