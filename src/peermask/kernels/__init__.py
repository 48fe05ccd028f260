"""Triton kernels for the hot path on a GPU; each has an eager twin that says what it computes."""

from __future__ import annotations

from functools import cache

import torch


@cache
def have_triton() -> bool:
    """Triton comes with PyTorch's CUDA builds; elsewhere the eager twins serve."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return torch.cuda.is_available()
