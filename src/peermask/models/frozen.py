"""Frozen weights: a function of (architecture, init, seed), or loaded; the same on every machine, with a checksum.

Two peers with different checksums hold different networks, and masks between them would mean nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import sqrt
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from peermask.errors import ModelError, nearest
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
    given: frozenset[str] = frozenset()  # names of the layers that were not drawn


def frozen_weights(
    layout: Layout,
    init: str,
    bias_init: BiasInit,
    seed: int,
    given: Mapping[str, Tensor] | None = None,
    beside: Mapping[str, Tensor] | None = None,
) -> FrozenWeights:
    """Draw weights from a seed, except loaded ones; the checksum covers what is `beside` them too (buffers)."""
    draw_weights = inits[init].make
    given = given or {}
    parts = []
    for layer in layout.layers:
        if layer.name in given:
            parts.append(given[layer.name].detach().cpu().numpy().astype("<f4").reshape(-1))
            continue
        draw = stream(seed, f"frozen/{layer.name}")
        match layer.kind:
            case "conv" | "linear" | "embedding" | "recurrent":
                values = draw_weights(layer, draw)
            case "bias" if bias_init == "torch-default":
                values = torch_default(layer, draw)
            case "norm-weight":
                values = np.ones(layer.size)
            case "other":
                values = 0.02 * draw.normal(layer.size)  # such as positions: the usual choice for transformers
            case _:
                values = np.zeros(layer.size)
        parts.append(values.astype("<f4"))
    flat = np.concatenate(parts)  # [P]
    return FrozenWeights(torch.from_numpy(flat), checksum(layout, flat, beside or {}), frozenset(given))


def own_weights(
    module: nn.Module, layout: Layout, init: str, bias_init: BiasInit, seed: int, drawn: Sequence[str] = ()
) -> FrozenWeights:
    """A module's own parameters, but for those whose names match a pattern of `drawn`."""
    names = [layer.name for layer in layout.layers]
    for pattern in drawn:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ModelError(f"frozen.drawn: {pattern!r} matches no parameter; {nearest(pattern, names)}")
    own = {
        name: parameter
        for name, parameter in module.named_parameters()
        if not any(fnmatchcase(name, pattern) for pattern in drawn)
    }
    return frozen_weights(layout, init, bias_init, seed, own, dict(module.named_buffers()))


def checksum(layout: Layout, flat: NDArray[np.float32], beside: Mapping[str, Tensor]) -> str:
    """Covers names and shapes too, so that equal numbers in another architecture differ."""
    digest = hashlib.sha256()
    for layer in layout.layers:
        digest.update(f"{layer.name}:{layer.shape};".encode())
    digest.update(flat.astype("<f4").tobytes())
    for name, tensor in sorted(beside.items()):
        digest.update(f"{name}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
