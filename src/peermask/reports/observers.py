"""Observers of a run: progress on a terminal, TensorBoard, and several at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.errors import RunError
from peermask.run.build import Experiment
from peermask.run.execution import Observer, Silent, Status
from peermask.run.metrics import Evaluation
from peermask.task import FIGURES, figure_name, format_bytes

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

TENSORBOARD_AGENTS = 100  # agents with a curve of their own


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
    """Make the loggers that were asked for."""
    return [] if tensorboard is None else [TensorBoard(tensorboard)]


def summary_of(evaluation: Evaluation) -> dict[str, float]:
    """Summarise an evaluation in few numbers, over all agents: for an observer.

    Args:
        evaluation: What an observer's `evaluation` gets.

    Returns:
        Names and values, such as "test_accuracy", a mean, and "test_accuracy_worst".

    Examples:
        >>> import peermask
        >>> class Worst:
        ...     def begin(self, experiment, name, round): ...
        ...     def round(self, clock, losses, sent_bytes): ...
        ...     def evaluation(self, evaluation):
        ...         assert 0 <= peermask.summary_of(evaluation)["test_accuracy_worst"] <= 1
        ...     def end(self, status):
        ...         print(status)
        >>> execution = peermask.Execution(observer=Worst())
        >>> result = peermask.run_experiment({"agents": 4, "rounds": 1, "model": "mlp"}, "run", execution=execution)
        finished
    """
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


@contextmanager
def display(console: Console) -> Iterator[Observer]:
    """Live progress on a terminal; nothing is printed where the output is not a terminal."""
    if not console.is_terminal or console.quiet:
        yield Silent()
        return
    with Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        yield Live(progress)


class Live:
    """One bar per algorithm: round, loss, mean accuracy, bytes so far, time left."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task = TaskID(0)
        self.accuracy = ""

    def begin(self, experiment: Experiment, name: str, round: int) -> None:
        self.accuracy = f"{figure_name(FIGURES[experiment.dataset.task][0])} -"
        self.task = self.progress.add_task(name, total=experiment.config.rounds, completed=round, figures="")

    def round(self, clock: Clock, losses: Tensor, sent_bytes: float) -> None:
        # Reading a loss from a GPU would wait for the round to finish, so it is left out.
        loss = f"loss {float(losses.mean()):.3f}  " if losses.device.type == "cpu" else ""
        figures = f"{loss}{self.accuracy}  sent {format_bytes(sent_bytes)}"
        self.progress.update(self.task, completed=clock.round, figures=figures)

    def evaluation(self, evaluation: Evaluation) -> None:
        self.accuracy = evaluation.test.headline

    def end(self, status: Status) -> None:
        if status == "converged":
            self.progress.update(self.task, total=self.progress.tasks[-1].completed)


class TensorBoard:
    """An observer that writes event files under a folder, one folder for each algorithm."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            package = "pip install 'peermask[tensorboard]'"
            raise RunError(f"--tensorboard needs tensorboard; install it with: {package}") from error
        self.folder, self._make = folder, SummaryWriter
        self._writer: SummaryWriter | None = None

    def begin(self, experiment: Experiment, name: str, round: int) -> None:
        own = self.folder / f"{experiment.config.name}-{name}-{experiment.config.hash}"
        try:
            # Rounds after the checkpoint that a run resumes from are written again.
            self._writer = self._make(str(own), purge_step=round + 1 if round else None)
        except OSError as error:
            raise RunError(f"cannot write {own}: {error.strerror}") from error
        if not round:
            self._writer.add_text("config", f"```\n{json.dumps(experiment.config.table(), indent=2)}\n```")

    def round(self, clock: Clock, losses: Tensor, sent_bytes: float) -> None: ...

    def evaluation(self, evaluation: Evaluation) -> None:
        if self._writer is None:
            return
        for name, value in summary_of(evaluation).items():
            self._writer.add_scalar(name, value, evaluation.round)
        for agent, accuracy in enumerate(evaluation.test.main[:TENSORBOARD_AGENTS].tolist()):
            self._writer.add_scalar(f"agents/{agent}", accuracy, evaluation.round)
        self._writer.flush()

    def end(self, status: Status) -> None:  # noqa: ARG002
        if self._writer is not None:
            self._writer.close()
            self._writer = None
