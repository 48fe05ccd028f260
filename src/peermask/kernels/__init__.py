"""Fast code for the hot path: Triton on a GPU, fewer products on a CPU. Each has a reference implementation."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def have_triton() -> bool:
    """Triton comes with PyTorch's CUDA builds; elsewhere the reference implementations are used."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return torch.cuda.is_available()


def by_kernels(x: Tensor) -> bool:
    """Whether kernels, and not their reference implementations, compute with a tensor."""
    return x.device.type == "cuda" and have_triton()


def as_tensor(number: float | Tensor, like: Tensor) -> Tensor:
    """On the device: a number that is passed to a kernel would be the same in every replay of a recorded round."""
    return number if isinstance(number, Tensor) else torch.full((), number, dtype=torch.float32, device=like.device)
