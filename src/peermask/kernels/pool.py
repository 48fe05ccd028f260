"""ReLU after max-pooling over windows of 2x2 on a CPU, by compiled loops.

torch pools, keeps 8 bytes for each window to say where its largest entry was, and goes over the result again for ReLU;
the gradient takes as many passes back. Here each is one pass, with one byte for a window.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from peermask.compiled import by_loops


def pool_and_relu(x: Tensor) -> Tensor:
    """`F.relu(F.max_pool2d(x, 2))`, the same to the last bit; fastest in channels-last layout."""
    images = x.device.type == "cpu" and x.dtype == torch.float32 and x.dim() == 4 and min(x.shape[2:]) > 1
    if not images or not by_loops(x.numel()):
        return F.relu(F.max_pool2d(x, 2))
    result: Tensor = _PoolAndReLU.apply(x)  # type: ignore[no-untyped-call]
    return result


class _PoolAndReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from peermask.kernels.pool_numba import pool

        images, channels, height, width = x.shape
        y = x.new_empty(images, height // 2, width // 2, channels)
        place = y.new_empty(y.shape, dtype=torch.uint8)
        pool(_pixels(x), y.numpy(), place.numpy())
        ctx.size = height, width
        ctx.save_for_backward(place)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        from peermask.kernels.pool_numba import unpool

        (place,) = ctx.saved_tensors
        images, channels, *_ = gradient.shape
        dx = gradient.new_empty(images, *ctx.size, channels)
        unpool(_pixels(gradient), place.numpy(), dx.numpy())
        return dx.permute(0, 3, 1, 2)


def _pixels(x: Tensor) -> NDArray[np.float32]:
    """[N, C, H, W] -> [N, H, W, C]"""
    entries: NDArray[np.float32] = x.detach().permute(0, 2, 3, 1).contiguous().numpy()
    return entries
