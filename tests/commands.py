"""Types of fixtures that many tests use, and how a test stops a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from peermask.config.experiment import ExperimentConfig
from peermask.run.execution import Execution

Call = Callable[..., tuple[int, str, str]]
Refused = Callable[..., str]
Small = Callable[..., ExperimentConfig]


def stop_after(rounds: int, workers: int | None = None) -> Execution:
    """Stop once after so many rounds, as Ctrl-C does."""
    asked = itertools.count(1)
    return Execution("cpu", workers=workers, should_stop=lambda: next(asked) == rounds)
