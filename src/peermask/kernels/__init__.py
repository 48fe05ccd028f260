"""Fast code for the hot path: Triton on a GPU, fewer products on a CPU. Each has a reference implementation."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def have_triton() -> bool:
    """Whether Triton can be used. It comes with PyTorch's CUDA builds; elsewhere reference implementations run."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return torch.cuda.is_available()


def by_kernels(x: Tensor) -> bool:
    """Whether kernels, and not their reference implementations, compute with a tensor."""
    return x.device.type == "cuda" and have_triton()


def as_tensor(number: float | Tensor, like: Tensor) -> Tensor:
    """Put a number on the device: as an argument it would be the same in every replay of a recorded round."""
    return number if isinstance(number, Tensor) else torch.full((), number, dtype=torch.float32, device=like.device)
