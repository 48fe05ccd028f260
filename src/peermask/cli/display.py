"""Live progress on a terminal; nothing is printed where the output is not a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.data.measures import FIGURES
from peermask.run.build import Experiment
from peermask.run.execution import Observer, Silent, Status
from peermask.run.format import figure_name, format_bytes, format_headline
from peermask.run.metrics import Evaluation


@contextmanager
def display(console: Console) -> Iterator[Observer]:
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
        self.accuracy = format_headline(evaluation.test)

    def end(self, status: Status) -> None:
        if status == "converged":
            self.progress.update(self.task, total=self.progress.tasks[-1].completed)
