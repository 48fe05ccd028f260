"""Target networks of the class F: what the masks must approximate, and what the theorem demands of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from peermask.errors import ModelError
from peermask.theory.network import Layers

ROUNDING = 1e-12  # a norm scaled to 1 may come out this much above it


@dataclass(frozen=True)
class Target:
    """A network of class F: v_l in [-1, 1] and ‖v_l‖_1 <= 1 for each layer l, checked when it is made."""

    layers: Layers

    def __post_init__(self) -> None:
        if not self.layers:
            raise ModelError("a target network needs at least one layer")
        before = self.layers[0].shape[1] if self.layers[0].ndim == 4 else 0
        for number, weight in enumerate(self.layers, start=1):
            _require_layer(number, weight, before)
            before = weight.shape[0]

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def weights(self) -> int:
        return sum(weight.numel() for weight in self.layers)

    @property
    def problems(self) -> int:
        """O_{l-1} O_l d_l^2 L of the widest layer: the count inside the lemma's logarithm."""
        return max(weight.numel() for weight in self.layers) * self.depth


def _require_layer(number: int, weight: torch.Tensor, channels: int) -> None:
    where = f"layer {number} of the target"
    if weight.ndim != 4 or weight.shape[2] != weight.shape[3] or weight.shape[2] % 2 == 0:
        raise ModelError(f"{where} has shape {list(weight.shape)}; a kernel is [O, C, d, d] with d odd")
    if weight.shape[1] != channels:
        raise ModelError(f"{where} reads {weight.shape[1]} channels but is given {channels}")
    if weight.dtype != torch.float64:
        raise ModelError(f"{where} is {weight.dtype}; float64 is needed to measure such small errors")
    if not bool(torch.isfinite(weight).all()):
        raise ModelError(f"{where} has weights that are NaN or infinite; did the training diverge?")
    largest, norm = float(weight.abs().max()), float(weight.abs().sum())
    if largest > 1.0 + ROUNDING:
        raise ModelError(f"{where} has a weight of size {largest:.6g}; class F allows [-1, 1]: scale it down")
    if norm > 1.0 + ROUNDING:
        raise ModelError(f"{where} has l1 norm {norm:.6g}; class F allows at most 1: divide it by that")
