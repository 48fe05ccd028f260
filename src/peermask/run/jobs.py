"""Queue of runs that several processes may share: each run is claimed by a lock, played or resumed, and never repeated.

Sweeps and `reproduce` differ in what a finished run is, and in what they keep of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from peermask.compute.device import pick_device
from peermask.compute.network import Gradient
from peermask.config.experiment import ExperimentConfig
from peermask.data import datasets
from peermask.data.dataset import Dataset
from peermask.errors import DivergedError
from peermask.files import try_lock
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment
from peermask.run.side_by_side import play_side_by_side, runs_at_once

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
    _at_once: dict[str, int] = field(default_factory=dict)

    def run(self, jobs: Sequence[Job], begin: Callable[[Job], None]) -> bool:
        """Run what is not done and what no other process runs, one after another, or several at once on a GPU.

        Returns:
            Whether any was run.

        Raises:
            Stopped: The user asked to stop; what has begun is saved.
        """
        left = [job for job in jobs if not self.is_done(job)]
        played = False
        while left:
            if self.execution.should_stop():
                raise Stopped
            form, dataset = _form(left[0].config), self._read(left[0].config)
            if form not in self._at_once:  # asked once, since it builds a network
                self._at_once[form] = runs_at_once(left[0].config, dataset, pick_device(self.execution.device))
            batch = [job for job in left if _form(job.config) == form][: self._at_once[form]]
            left = [job for job in left if job not in batch]
            with ExitStack() as claims:
                ours = [job for job in batch if claims.enter_context(try_lock(job.lock)) and not self.is_done(job)]
                for job in ours:
                    begin(job)
                if ours:
                    self._play(ours, dataset)
                    played = True
        return played

    def _play(self, jobs: Sequence[Job], dataset: Dataset) -> None:
        """Run jobs side by side, and keep the results of those that ended."""
        paths = {id(job.config): job.path for job in jobs}

        def play(config: ExperimentConfig, gradient: Gradient | None) -> RunResult:
            execution = replace(self.execution, gradient=gradient)
            return run_experiment(config, paths[id(config)], resume=True, execution=execution, dataset=dataset)

        results = play_side_by_side([job.config for job in jobs], play)
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, DivergedError) or (isinstance(result, RunResult) and result.status != "interrupted"):
                self.keep(job, result)
                with suppress(OSError):  # a process that has opened the lock meanwhile finds the result
                    job.lock.unlink()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, DivergedError):
                raise result
            if isinstance(result, RunResult) and result.status == "interrupted":
                raise Stopped

    def _read(self, config: ExperimentConfig) -> Dataset:
        """The dataset of a config; the last one is kept."""
        if self.dataset is not None:
            return self.dataset
        source = json.dumps(config.dataset.table())
        if source not in self._data:
            self._data.clear()
            self._data[source] = datasets[config.dataset.name].make(**dict(config.dataset.options))
        return self._data[source]


def _form(config: ExperimentConfig) -> str:
    """Text that is equal for runs on the same data which take about the same memory."""
    return json.dumps([config.dataset.table(), config.model.table(), config.agents, config.asynchronous is None])
