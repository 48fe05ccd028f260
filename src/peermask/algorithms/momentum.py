"""Momentum: gradients summed over rounds, older ones ever less. The paper has none; it is off unless asked for."""

from __future__ import annotations

import torch
from torch import Tensor


def first_velocity(like: Tensor, momentum: float) -> Tensor | None:
    """u = 0, or nothing to carry where momentum is off."""
    return torch.zeros_like(like) if momentum else None


def accumulated(gradient: Tensor, velocity: Tensor | None, momentum: float) -> Tensor:
    """u ← β u + g, and g itself where momentum is off."""
    return gradient if velocity is None else momentum * velocity + gradient
