"""Several observers of one run: the terminal, and loggers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.run.build import Experiment
from peermask.run.execution import Observer, Status
from peermask.run.metrics import Evaluation


@dataclass(frozen=True)
class ObserverList:
    """Notifies each of them, in order."""

    observers: Sequence[Observer]

    def begin(self, experiment: Experiment, name: str, round: int) -> None:
        for observer in self.observers:
            observer.begin(experiment, name, round)

    def round(self, clock: Clock, losses: Tensor, sent_bytes: float) -> None:
        for observer in self.observers:
            observer.round(clock, losses, sent_bytes)

    def evaluation(self, evaluation: Evaluation) -> None:
        for observer in self.observers:
            observer.evaluation(evaluation)

    def end(self, status: Status) -> None:
        for observer in self.observers:
            observer.end(status)


def loggers(tensorboard: Path | None) -> list[Observer]:
    """What was asked for."""
    if tensorboard is None:
        return []
    from peermask.reports.tensorboard import TensorBoard  # an optional package

    return [TensorBoard(tensorboard)]


def summary_of(evaluation: Evaluation) -> dict[str, float]:
    """An evaluation in few numbers, over all agents."""
    test, validation = evaluation.test, evaluation.validation
    main = next(iter(test.figures))
    known = test.main[~test.main.isnan()]
    figures = {
        **{f"test_{name}": float(values.nanmean()) for name, values in test.figures.items()},
        f"test_{main}_worst": float(known.min()) if len(known) else float("nan"),
        "test_loss": float(test.loss.nanmean()),
        f"validation_{main}": float(validation.main.nanmean()),
        "validation_loss": float(validation.loss.nanmean()),
        "train_loss": float(evaluation.train_loss.mean()),
        "density": float(evaluation.density.mean()),
        "sent_bytes": float(evaluation.sent_bytes.sum()),
        "seconds": evaluation.seconds,
    }
    return {name: value for name, value in figures.items() if value == value}  # a logger has no use for NaN
