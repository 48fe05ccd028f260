"""Fast code for the hot path: Triton on a GPU, fewer products on a CPU. Each has a reference implementation."""

from __future__ import annotations

import torch
from torch import Tensor


def by_kernels(x: Tensor) -> bool:
    """Whether kernels, and not their reference implementations, compute with a tensor."""
    return x.device.type == "cuda"


def as_tensor(number: float | Tensor, like: Tensor) -> Tensor:
    """Put a number on the device: as an argument it would be the same in every replay of a recorded round."""
    return number if isinstance(number, Tensor) else torch.full((), number, dtype=torch.float32, device=like.device)
