"""What the steps of all methods have in common: a learning rate over the rounds of a run, and momentum."""

from __future__ import annotations

from math import cos, pi
from typing import Literal

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock

Schedule = Literal["constant", "cosine"]


def scheduled(lr: float, schedule: Schedule, clock: Clock, start: float = 0.0) -> float | Tensor:
    """η, or η (1 + cos(π k / T)) / 2, where k and T are counted from `start`, a share of all rounds."""
    if schedule == "constant":
        return lr
    return clock.varying(lambda progress: 0.5 * lr * (1.0 + cos(pi * max(0.0, progress - start) / (1.0 - start))))


# Momentum: gradients summed over rounds, older ones ever less. The paper has none; it is off unless asked for.


def first_velocity(like: Tensor, momentum: float) -> Tensor | None:
    """u = 0, or nothing to carry where momentum is off."""
    return torch.zeros_like(like) if momentum else None


def accumulated(gradient: Tensor, velocity: Tensor | None, momentum: float) -> Tensor:
    """u ← β u + g, and g itself where momentum is off."""
    return gradient if velocity is None else momentum * velocity + gradient
