"""A certified bound on how far two networks can be apart anywhere on the cube, from their weights alone.

A maximum over samples can only underestimate a supremum. This is the other side of it. Let z be an activation
of f with 0 <= z_c <= hi_c, and ẑ that of h with |ẑ_c - z_c| <= e_c. With Δ = h - f (same layer),

    h * ẑ - f * z = Δ * z + h * (ẑ - z),
    |·|_o <= max(Σ_c ‖Δ⁺_oc‖_1 hi_c, Σ_c ‖Δ⁻_oc‖_1 hi_c) + Σ_c ‖h_oc‖_1 e_c,

the first term because z is non-negative; the ReLU does not increase a distance, and max_o of the last layer
bounds sup_x ‖f(x) - h(x)‖_max. For a single layer it is attained.
"""

from __future__ import annotations

import torch

from peermask.theory.network import Layers


def certified_distance(f: Layers, h: Layers) -> float:
    """An upper bound of sup over x in [0, 1]^(D x D x C) of ‖f(x) - h(x)‖_max, for two networks of form (20)."""
    high = torch.ones(f[0].shape[1], dtype=torch.float64)  # [C] bound of f's activation
    error = torch.zeros_like(high)  # [C] bound of the distance so far
    for mine, other in zip(f, h, strict=True):
        delta = other - mine  # [O, C, d, d]
        above = delta.clamp(min=0).sum((2, 3)) @ high  # [O]
        below = (-delta).clamp(min=0).sum((2, 3)) @ high
        error = torch.maximum(above, below) + other.abs().sum((2, 3)) @ error
        high = mine.clamp(min=0).sum((2, 3)) @ high
    return float(error.max())
