"""Learning rates over the rounds of a run."""

from __future__ import annotations

from math import cos, pi
from typing import Literal

from torch import Tensor

from peermask.algorithms.contract import Clock

Schedule = Literal["constant", "cosine"]


def scheduled(lr: float, schedule: Schedule, clock: Clock) -> float | Tensor:
    """η, or η (1 + cos(π k / T)) / 2."""
    return lr if schedule == "constant" else clock.varying(lambda progress: 0.5 * lr * (1.0 + cos(pi * progress)))
