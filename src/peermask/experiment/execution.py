"""How a run is computed and watched: nothing here changes its result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.experiment.build import Experiment
from peermask.experiment.metrics import Evaluation

Status = Literal["finished", "converged", "interrupted"]


class Observer(Protocol):
    """Told what happens as it happens; a display, or nothing."""

    def begin(self, experiment: Experiment, name: str, round: int) -> None: ...
    def round(self, clock: Clock, losses: Tensor, sent_bytes: float) -> None: ...
    def evaluation(self, evaluation: Evaluation) -> None: ...
    def end(self, status: Status) -> None: ...


class Silent:
    """An observer that shows nothing."""

    def begin(self, experiment: Experiment, name: str, round: int) -> None: ...
    def round(self, clock: Clock, losses: Tensor, sent_bytes: float) -> None: ...
    def evaluation(self, evaluation: Evaluation) -> None: ...
    def end(self, status: Status) -> None: ...


def to_stderr(line: str) -> None:
    print(f"peermask: {line}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Execution:
    """How a run is computed: nothing here changes its result."""

    device: str = "auto"
    chunk: int | None = None
    workers: int | None = None
    observer: Observer = field(default_factory=Silent)
    should_stop: Callable[[], bool] = lambda: False
    final_checkpoint: bool = True  # hundreds of runs of which only the tables matter can do without
    # Checkpoints: beside the rounds that follow, or before the first of them; or another process writes the run
    writes: Literal["beside", "first", "never"] = "beside"
    warn: Callable[[str], None] = to_stderr  # something is wrong that the run gets over by itself
