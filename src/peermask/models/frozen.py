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

# A random network answers with a deviation of about 1 before it has learned anything, as much as the targets of a
# regression have. A mask that keeps most of the last layer can hardly take that away, so that layer is drawn smaller.
REGRESSION_OUTPUT_SCALE = 0.25

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
    *,
    regressed: int = 0,
) -> FrozenWeights:
    """Draw weights from a seed, except loaded ones; the checksum covers what is `beside` them too (buffers).

    `regressed` is the number of outputs of a regression, whose last layer is drawn with `REGRESSION_OUTPUT_SCALE`.
    """
    draw_weights = inits[init].make
    given = given or {}
    last = next((one for one in reversed(layout.masked) if regressed and one.filters == regressed), None)
    parts = []
    for layer in layout.layers:
        if layer.name in given:
            parts.append(given[layer.name].detach().cpu().numpy().astype("<f4").reshape(-1))
            continue
        draw = stream(seed, f"frozen/{layer.name}")
        match layer.kind:
            case "conv" | "linear" | "embedding" | "recurrent":
                values = draw_weights(layer, draw) * (REGRESSION_OUTPUT_SCALE if layer == last else 1.0)
            case "bias" if bias_init == "torch-default":
                values = torch_default(layer, draw)
            case "norm-weight":
                values = np.ones(layer.size)
            case "other":
                # Such as positions. Drawn embeddings have values of about 1, beside which the 0.02 usual in trained
                # transformers would be lost: attention could not tell its inputs apart.
                values = draw.normal(layer.size)
            case _:
                values = np.zeros(layer.size)
        parts.append(values.astype("<f4"))
    flat = np.concatenate(parts)  # [P]
    return FrozenWeights(torch.from_numpy(flat), checksum(layout, flat, beside or {}), frozenset(given))


def own_weights(
    module: nn.Module,
    layout: Layout,
    init: str,
    bias_init: BiasInit,
    seed: int,
    drawn: Sequence[str] = (),
    *,
    regressed: int = 0,
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
    return frozen_weights(layout, init, bias_init, seed, own, dict(module.named_buffers()), regressed=regressed)


def checksum(layout: Layout, flat: NDArray[np.float32], beside: Mapping[str, Tensor]) -> str:
    """Hash values, names and shapes, so that equal numbers in another architecture differ."""
    digest = hashlib.sha256()
    for layer in layout.layers:
        digest.update(f"{layer.name}:{layer.shape};".encode())
    digest.update(flat.astype("<f4").tobytes())
    for name, tensor in sorted(beside.items()):
        digest.update(f"{name}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
