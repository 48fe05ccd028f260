"""The frozen weights: a function of (architecture, init, seed), the same on every machine, with a checksum.

Two peers with different checksums hold different networks, and masks between them would mean nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peermask.models.layout import Layer, Layout
from peermask.registry import Registry
from peermask.streams import Stream, stream

Init = Callable[[Layer, Stream], NDArray[np.float64]]
BiasInit = Literal["zero", "torch-default"]

inits: Registry[Init] = Registry("init")


@inits.register("signed-constant")
def signed_constant(layer: Layer, draw: Stream) -> NDArray[np.float64]:
    """±sqrt(2 / fan_in): only the signs are random."""
    return draw.signs(layer.size).astype(np.float64) * sqrt(2.0 / layer.fan_in)


@inits.register("uniform-pm1")
def uniform_pm1(layer: Layer, draw: Stream) -> NDArray[np.float64]:
    """U(-1, 1), as in the paper's test of the hypothesis."""
    return 2.0 * draw.uniform(layer.size) - 1.0


@inits.register("torch-default")
def torch_default(layer: Layer, draw: Stream) -> NDArray[np.float64]:
    """U(±1/sqrt(fan_in)), what PyTorch gives convolutions and linear layers."""
    return (2.0 * draw.uniform(layer.size) - 1.0) / sqrt(layer.fan_in)


@inits.register("kaiming-normal")
def kaiming_normal(layer: Layer, draw: Stream) -> NDArray[np.float64]:
    """N(0, 2 / fan_in)."""
    return draw.normal(layer.size) * sqrt(2.0 / layer.fan_in)


@inits.register("kaiming-uniform")
def kaiming_uniform(layer: Layer, draw: Stream) -> NDArray[np.float64]:
    """U(±sqrt(6 / fan_in))."""
    return (2.0 * draw.uniform(layer.size) - 1.0) * sqrt(6.0 / layer.fan_in)


@dataclass(frozen=True)
class FrozenWeights:
    values: Tensor  # [P] float32: w, then what is never masked
    checksum: str


def frozen_weights(layout: Layout, init: str, bias_init: BiasInit, seed: int) -> FrozenWeights:
    draw_weights = inits[init].make
    parts = []
    for layer in layout.layers:
        draw = stream(seed, f"frozen/{layer.name}")
        match layer.kind:
            case "conv" | "linear":
                values = draw_weights(layer, draw)
            case "bias" if bias_init == "torch-default":
                values = torch_default(layer, draw)
            case "norm-weight":
                values = np.ones(layer.size)
            case "other":
                values = 0.02 * draw.normal(layer.size)  # embeddings and tokens: the usual choice for transformers
            case _:
                values = np.zeros(layer.size)
        parts.append(values.astype("<f4"))
    flat = np.concatenate(parts)  # [P]
    return FrozenWeights(torch.from_numpy(flat), checksum(layout, flat))


def checksum(layout: Layout, flat: NDArray[np.float32]) -> str:
    """Covers names and shapes too, so that equal numbers in another architecture differ."""
    digest = hashlib.sha256()
    for layer in layout.layers:
        digest.update(f"{layer.name}:{layer.shape};".encode())
    digest.update(flat.astype("<f4").tobytes())
    return digest.hexdigest()[:32]
