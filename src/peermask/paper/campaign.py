"""Campaign: the runs that an output folder still lacks, most informative first.

It can be killed and called again at any time, and several processes may share the work of one folder: each takes the
first run of all that no other has taken.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from peermask.config.choice import choose
from peermask.data import datasets
from peermask.data.dataset import Dataset
from peermask.errors import ConfigError, DivergedError
from peermask.paper.cells import Cell, Defaults, Job, by_value, cells_of, tuning_cell
from peermask.paper.outcome import Outcome, measure
from peermask.paper.output_folder import OutputFolder, drop_checkpoints
from peermask.paper.preset import ScaleName, scales
from peermask.paper.tuning import Tuning
from peermask.run.execution import Execution
from peermask.run.jobs import Job as Run
from peermask.run.jobs import JobQueue, Stopped, Tell
from peermask.run.result import RunResult
from peermask.store.folder import RunFolder

POLL_SECONDS = 1.0  # between two looks at what other processes have finished


@dataclass(frozen=True)
class Campaign:
    defaults: Defaults
    home: OutputFolder
    dataset: Dataset | None  # the scale's; None where no run uses it
    names: tuple[str, ...]
    seeds: tuple[int, ...]
    execution: Execution
    first: tuple[str, ...] = ()  # experiments to run before all others, in this order
    _jobs: dict[Cell, Job] = field(default_factory=dict)  # which do not change once their method is tuned
    _finished: set[Cell] = field(default_factory=set)

    @cached_property
    def tuning(self) -> Tuning:
        return Tuning(self.defaults, self.home, self.home.tuning_seed)

    @cached_property
    def cells(self) -> list[Cell]:
        return by_value([cell for name in self.names for cell in cells_of(name, self.seeds)], self.seeds, self.first)

    def run(self, tell: Tell) -> None:
        """Run every missing cell; a method is tuned before its first cell.

        What another process on the same folder works on is left to it, and waited for at the end.
        """
        waiting = False
        while unfinished := [cell for cell in self.cells if not self._is_finished(cell)]:
            if any(self._advance(alike, tell) for alike in _by_place(unfinished)):  # then look again from the top
                waiting = False
                continue
            if not waiting:
                tell(*self._done(), "waiting for runs of other processes")
            waiting = True
            if self.execution.should_stop():
                raise Stopped
            time.sleep(POLL_SECONDS)

    def _advance(self, cells: Sequence[Cell], tell: Tell) -> bool:
        """Run the seeds of a cell, or first what its method still has to try; False where others are at all of that."""
        method = cells[0].of_row.method
        trials = [] if self.tuning.chosen(method) is not None else self.tuning.trials(method)
        if self._play([(trial.job, f"tuning {method}: {trial.name}") for trial in trials], tell):
            return True
        return self._play([(job, cell.name) for cell in cells if (job := self.job(cell)) is not None], tell)

    def _is_finished(self, cell: Cell) -> bool:
        if cell not in self._finished and self.outcome(cell) is not None:
            self._finished.add(cell)
        return cell in self._finished

    def _done(self) -> tuple[int, int]:
        return len(self.cells) - self.missing(), len(self.cells)

    def job(self, cell: Cell) -> Job | None:
        """The job of a cell; None while its method is not tuned yet."""
        if cell not in self._jobs and (chosen := self.tuning.chosen(cell.of_row.method)) is not None:
            self._jobs[cell] = self.defaults.job(cell, chosen)
        return self._jobs.get(cell)

    def outcome(self, cell: Cell) -> Outcome | None:
        """The outcome of a cell; None while its run is unfinished."""
        job = self.job(cell)
        return None if job is None else self.home.outcome(job)

    def outcomes(self, experiment: str, row: int, column: int) -> list[Outcome]:
        """Outcomes of the seeds that are done."""
        outcomes = [self.outcome(Cell(experiment, row, column, seed)) for seed in self.seeds]
        return [outcome for outcome in outcomes if outcome is not None]

    def missing(self) -> int:
        return sum(not self._is_finished(cell) for cell in self.cells)

    def _play(self, jobs: Sequence[tuple[Job, str]], tell: Tell) -> bool:
        """Run jobs and save their outcomes; False if all are done, or other processes run them."""
        runs = [Run(name, job.config, self.home.run(job).path) for job, name in jobs]
        return self._queue.run(runs, lambda run: tell(*self._done(), run.name))

    @cached_property
    def _queue(self) -> JobQueue:
        def is_done(run: Run) -> bool:
            return self.home.outcome(Job(run.path.name, run.config)) is not None

        return JobQueue(self.execution, is_done, self._keep, self.dataset)

    def _keep(self, run: Run, result: RunResult | DivergedError) -> None:
        folder, diverged = RunFolder(run.path), str(result) if isinstance(result, DivergedError) else None
        outcome = Outcome(config=run.config.table(), diverged=diverged) if diverged else measure(folder)
        self.home.keep(Job(run.path.name, run.config), outcome)
        drop_checkpoints(folder)


def _by_place(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The seeds of each place of each table together, in the order of the first."""
    places: dict[tuple[str, int, int], list[Cell]] = {}
    for cell in cells:
        places.setdefault((cell.experiment, cell.row, cell.column), []).append(cell)
    return list(places.values())


def read_data(scale: ScaleName, names: Sequence[str], folder: str | None) -> Dataset | None:
    """The data of a scale, once for all runs; None if all experiments name other data.

    Configs name the data and not where it lies, so that runs are found again under any folder name.
    """
    defaults = Defaults(scale, scales()[scale])
    table = dict(defaults.scale.config["dataset"])
    cells = [cell for name in names for cell in cells_of(name, (0,))]
    tuned = [tuning_cell(method, 0) for method in dict.fromkeys(cell.of_row.method for cell in cells)]
    used = {defaults.table(cell, {})["dataset"]["name"] for cell in (*cells, *tuned)}
    if table["name"] not in used:
        if folder is not None:
            raise ConfigError(f"--data-dir {folder}: these experiments use {' and '.join(sorted(used))}; remove it")
        return None
    if folder is not None:
        if table["name"] == "digits":
            raise ConfigError(f"--data-dir {folder}: scale {scale!r} uses the digits in the package; remove it")
        table["folder"] = folder
    choice = choose(datasets, "dataset", table)
    return datasets[choice.name].make(**dict(choice.options))
