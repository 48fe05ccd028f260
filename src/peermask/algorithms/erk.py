"""Erdős–Rényi-kernel densities: how sparse networks that are trained sparse share their weights among layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from peermask.models.layout import Layout


def erk_densities(shapes: Sequence[Sequence[int]], total: float) -> list[float]:
    """k_l = min(1, ε Σ shape / Π shape), with the ε that keeps `total` of all weights."""
    sizes = [prod(shape) for shape in shapes]
    raw = [sum(shape) / size for shape, size in zip(shapes, sizes, strict=True)]
    dense: set[int] = set()
    while True:
        sparse = [layer for layer in range(len(sizes)) if layer not in dense]
        if not sparse:
            return [1.0] * len(sizes)
        left = total * sum(sizes) - sum(sizes[layer] for layer in dense)
        epsilon = left / sum(raw[layer] * sizes[layer] for layer in sparse)
        over = {layer for layer in sparse if epsilon * raw[layer] > 1.0}
        if not over:
            return [1.0 if layer in dense else epsilon * raw[layer] for layer in range(len(sizes))]
        # Only the densest is capped at a time, as each one capped leaves more for the others.
        dense.add(max(over, key=lambda layer: raw[layer]))


def erk_counts(layout: Layout, retentions: Sequence[float]) -> Tensor:
    """K_l of every agent: its retention over all masked weights, shared out by ERK."""
    shapes = [layer.shape for layer in layout.masked]
    rows = [
        [
            min(size, max(1, round(density * size)))
            for density, size in zip(erk_densities(shapes, r), layout.sizes, strict=True)
        ]
        for r in retentions
    ]
    return torch.tensor(rows, dtype=torch.int64)  # [A, L]
