"""Learning rates over the rounds of a run."""

from __future__ import annotations

from math import cos, pi
from typing import Literal

from peermask.algorithms.contract import Clock

Schedule = Literal["constant", "cosine"]


def scheduled(lr: float, schedule: Schedule, clock: Clock) -> float:
    """η, or η (1 + cos(π k / T)) / 2."""
    return lr if schedule == "constant" else 0.5 * lr * (1.0 + cos(pi * clock.progress))
