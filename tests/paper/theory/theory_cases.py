"""Networks for the theory tests, small enough to check by other means."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from peermask.paper.theory.networks import Layers, Target
from peermask.streams import stream


def uniform(seed: int, *shape: int) -> Tensor:
    """In [-1, 1]."""
    draws = stream(seed, "theory/tests").uniform(int(np.prod(shape)))
    return torch.from_numpy(2 * draws - 1).reshape(shape)


def some_layers(seed: int, channels: tuple[int, ...] = (1, 2, 2), side: int = 3) -> Layers:
    raw = [uniform(10 * seed + n, o, c, side, side) for n, (c, o) in enumerate(pairwise(channels))]
    return tuple(weight / weight.abs().sum() for weight in raw)


def some_target(seed: int, channels: tuple[int, ...] = (1, 2, 2), side: int = 3) -> Target:
    return Target(some_layers(seed, channels, side))


def kernel(*values: float) -> Tensor:
    """1 x 1 kernels of one input channel, an output channel for each value."""
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1, 1)


def by_hand(layers: Layers, image: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Equation (20) with loops: nothing here comes from the library."""
    for number, weight in enumerate(layers):
        kernels = weight.numpy()
        outs, ins, side, _ = kernels.shape
        height, width = image.shape[1:]
        padded = np.pad(image, ((0, 0), (side // 2,) * 2, (side // 2,) * 2))
        made = np.zeros((outs, height, width))
        for o in range(outs):
            for c in range(ins):
                for y in range(side):
                    for x in range(side):
                        made[o] += kernels[o, c, y, x] * padded[c, y : y + height, x : x + width]
        image = made if number == len(layers) - 1 else np.maximum(made, 0)
    return image
