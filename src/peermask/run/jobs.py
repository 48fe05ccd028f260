"""Queue of runs that several processes may share: each run is claimed by a lock, played or resumed, and never repeated.

Sweeps and `reproduce` differ in what a finished run is, and in what they keep of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from peermask.config.experiment import ExperimentConfig
from peermask.data import datasets
from peermask.data.dataset import Dataset
from peermask.errors import DivergedError
from peermask.files import try_lock
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment

Tell = Callable[[int, int, str], None]  # runs done, runs in all, what begins now


class Stopped(Exception):
    """The user asked to stop; what is done is kept."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run, and the folder that it is played in."""

    name: str
    config: ExperimentConfig
    path: Path

    @property
    def lock(self) -> Path:
        return self.path.with_name(f".{self.path.name}.lock")


@dataclass(frozen=True)
class JobQueue:
    """Player of jobs; a run that diverges is a result, and no reason to give up the rest."""

    execution: Execution
    is_done: Callable[[Job], bool]
    keep: Callable[[Job, RunResult | DivergedError], None] = lambda _job, _result: None
    dataset: Dataset | None = None  # of all jobs; by default the one that each config names
    _data: dict[str, Dataset] = field(default_factory=dict)

    def run(self, jobs: Sequence[Job], begin: Callable[[Job], None]) -> bool:
        """Run what is not done and what no other process runs, one after another.

        Returns:
            Whether any was run.

        Raises:
            Stopped: The user asked to stop; what has begun is saved.
        """
        played = False
        for job in jobs:
            if self.is_done(job):
                continue
            if self.execution.should_stop():
                raise Stopped
            with try_lock(job.lock) as claimed:
                if claimed and not self.is_done(job):
                    begin(job)
                    self._play(job)
                    played = True
        return played

    def _play(self, job: Job) -> None:
        result: RunResult | DivergedError
        try:
            result = run_experiment(
                job.config, job.path, resume=True, execution=self.execution, dataset=self._read(job.config)
            )
        except DivergedError as error:
            result = error
        if isinstance(result, RunResult) and result.status == "interrupted":
            raise Stopped
        self.keep(job, result)
        with suppress(OSError):  # a process that has opened the lock meanwhile finds the result
            job.lock.unlink()

    def _read(self, config: ExperimentConfig) -> Dataset:
        """The dataset of a config; the last one is kept."""
        if self.dataset is not None:
            return self.dataset
        source = json.dumps(config.dataset.table())
        if source not in self._data:
            self._data.clear()
            self._data[source] = datasets[config.dataset.name].make(**dict(config.dataset.options))
        return self._data[source]
