"""Runs what an output folder still lacks, most telling first; it can be killed and called again at any time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from peermask.data import datasets
from peermask.data.dataset import Dataset
from peermask.errors import ConfigError, DivergedError
from peermask.experiment.choice import choose
from peermask.experiment.execution import Execution
from peermask.experiment.runner import run_experiment
from peermask.reproduce.cells import Cell, Frame, Job, by_value, cells_of
from peermask.reproduce.home import Home, clear_false_start, drop_checkpoints
from peermask.reproduce.outcome import Outcome, measure
from peermask.reproduce.preset import ScaleName, scales
from peermask.reproduce.tuning import Tuning

Tell = Callable[[int, int, str], None]  # cells done, cells in all, what begins now


class Stopped(Exception):
    """The user asked to stop; what is done is kept."""


@dataclass(frozen=True)
class Campaign:
    frame: Frame
    home: Home
    dataset: Dataset | None  # None where nothing is to be run
    names: tuple[str, ...]
    seeds: tuple[int, ...]
    execution: Execution

    @cached_property
    def tuning(self) -> Tuning:
        return Tuning(self.frame, self.home, self.seeds[0])

    @cached_property
    def cells(self) -> list[Cell]:
        return by_value([cell for name in self.names for cell in cells_of(name, self.seeds)], self.seeds)

    def run(self, tell: Tell) -> None:
        """Every cell that is missing; a method is tuned when it is first met."""
        for place, cell in enumerate(self.cells):

            def play(job: Job, name: str, place: int = place) -> Outcome:
                return self._play(job, lambda: tell(place, len(self.cells), name))

            chosen = self.tuning.choose(cell.of_row.method, play)
            play(self.frame.job(cell, chosen), cell.name)

    def job(self, cell: Cell) -> Job | None:
        """None while the method's learning rate is not chosen yet."""
        chosen = self.tuning.chosen(cell.of_row.method)
        return None if chosen is None else self.frame.job(cell, chosen)

    def outcome(self, cell: Cell) -> Outcome | None:
        """None while it has not been run to its end."""
        job = self.job(cell)
        return None if job is None else self.home.outcome(job)

    def outcomes(self, experiment: str, row: int, column: int) -> list[Outcome]:
        """Of the seeds that are done."""
        found = [self.outcome(Cell(experiment, row, column, seed)) for seed in self.seeds]
        return [outcome for outcome in found if outcome is not None]

    def missing(self) -> int:
        return sum(self.outcome(cell) is None for cell in self.cells)

    def _play(self, job: Job, begin: Callable[[], None]) -> Outcome:
        known = self.home.outcome(job)
        if known is not None:
            return known
        if self.execution.should_stop():
            raise Stopped
        begin()
        outcome = self._run(job)
        self.home.keep(job, outcome)
        drop_checkpoints(self.home.run(job))
        return outcome

    def _run(self, job: Job) -> Outcome:
        folder = self.home.run(job)
        clear_false_start(folder)
        try:
            result = run_experiment(
                job.config, folder.path, resume=folder.is_run, execution=self.execution, dataset=self.dataset
            )
        except DivergedError as error:
            # A step that is too large is a result, and no reason to give up the rest.
            return Outcome(config=job.config.table(), diverged=str(error))
        if result.status == "interrupted":
            raise Stopped
        return measure(folder)


def read_data(scale: ScaleName, folder: str | None) -> Dataset:
    """The data of a scale, once for all runs."""
    table = dict(scales()[scale].config["dataset"])
    if folder is not None:
        if table["name"] == "digits":
            raise ConfigError(f"--data-dir {folder}: scale {scale!r} uses the digits in the package; leave it out")
        table["folder"] = folder
    choice = choose(datasets, "dataset", table)
    return datasets[choice.name].make(**dict(choice.options))


def plan_campaign(
    scale: ScaleName,
    names: tuple[str, ...],
    seeds: Sequence[int] | None,
    home: Home,
    execution: Execution,
    dataset: Dataset | None,
) -> Campaign:
    # Configs name the data and not where it lay, so that runs are found again whatever the folder is called.
    frame = Frame(scale, scales()[scale], scales()[scale].config)
    chosen = tuple(range(frame.scale.seeds)) if seeds is None else tuple(seeds)
    return Campaign(frame, home, dataset, names, chosen, execution)
