"""The theorem's only kind of network: convolutions without bias, a ReLU between them, zero padding.

    f(x) = v_L * σ(v_{L-1} * ... σ(v_1 * x))        (20)

and the random g of (21) is the same with twice as many layers. Everything is float64, since the errors to be
seen are far below what float32 resolves.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from peermask.errors import DataError

Layers = tuple[Tensor, ...]  # layer l: [O_l, O_{l-1}, d_l, d_l], float64
IMAGES_AT_ONCE = 256  # bounds the memory of a wide g


def forward(layers: Layers, images: Tensor) -> Tensor:
    """Equation (20): the last layer has no ReLU after it, and outputs keep the input's height and width."""
    for index, weight in enumerate(layers):
        images = functional.conv2d(images, weight, padding=weight.shape[-1] // 2)  # [B, O_l, D, D]
        if index < len(layers) - 1:
            images = functional.relu(images)
    return images


@torch.no_grad()
def outputs(layers: Layers, images: Tensor) -> Tensor:
    """`forward` over many images, a chunk at a time."""
    return torch.cat([forward(layers, chunk) for chunk in images.split(IMAGES_AT_ONCE)])  # [N, O_L, D, D]


def require_unit_inputs(images: Tensor, channels: int) -> Tensor:
    """Assumption 1: every input entry is in [0, 1]. Returns the images as float64."""
    if images.ndim != 4 or images.shape[1] != channels or images.shape[0] == 0:
        raise DataError(f"inputs have shape {list(images.shape)}; the network takes [n > 0, {channels}, D, D]")
    images = images.to(torch.float64)
    low, high = float(images.min()), float(images.max())
    if not (low >= 0.0 and high <= 1.0):  # written so that a NaN is refused too
        raise DataError(f"inputs range over [{low:g}, {high:g}]; the theorem needs [0, 1]: divide by the peak value")
    return images
