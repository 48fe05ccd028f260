"""Queue of runs, and sweeps: one experiment with some of its keys varied, over several seeds.

Several processes may share a queue: each run is claimed by a lock, played or resumed, and never repeated. Sweeps and
`reproduce` differ in what a finished run is, and in what they keep of it. A sweep may get more values or seeds later.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from peermask.config.experiment import ExperimentConfig
from peermask.config.file import load_config, make_config, read_config
from peermask.data import datasets
from peermask.data.dataset import Dataset
from peermask.errors import ConfigError, DivergedError, PeermaskError
from peermask.files import try_lock
from peermask.plugins import find_plugins, of_name
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment
from peermask.store.sweeps import SweepFolder, SweepRun, touches

Tell = Callable[[int, int, str], None]  # runs done, runs in all, what begins now
ShouldStop = Callable[[], bool]


class Stopped(Exception):
    """Request of the user to stop; what is done stays."""


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
    dataset: Dataset | None = None  # of jobs whose config names it; others are read as their configs say
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
        if self.dataset is not None and self.dataset.name == config.dataset.name:
            return self.dataset
        source = json.dumps(config.dataset.table())
        if source not in self._data:
            self._data.clear()
            self._data[source] = datasets[config.dataset.name].make(**dict(config.dataset.options))
        return self._data[source]


def divide_cores(execution: Execution, processes: int) -> Execution:
    """Give each of several processes on this machine its share of the cores."""
    if processes == 1:
        return execution
    return replace(execution, workers=execution.workers or max(1, (os.cpu_count() or 1) // processes))


@contextmanager
def share(count: int, work: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Start processes that call `work(*arguments, should_stop)`; they end with the block, and soon if it fails."""
    context = multiprocessing.get_context("spawn")
    stopped = context.Event()
    others = [context.Process(target=_work, args=(work, arguments, stopped)) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    except BaseException:
        stopped.set()
        raise
    finally:
        for other in others:
            other.join()


def _work(work: Callable[..., None], arguments: Sequence[object], stopped: Event) -> None:
    """Work until told to stop, or until the process that started this one is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal sends them to all; the first process tells this one
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def should_stop() -> bool:
        return stopped.is_set() or not parent.is_alive()

    with suppress(Stopped, PeermaskError):  # the first process meets the same mistake, and says it
        work(*arguments, should_stop)


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep that are to be done."""

    root: Path
    base: ExperimentConfig
    runs: tuple[SweepRun, ...]

    def run(self, execution: Execution, tell: Tell, processes: int = 1) -> None:
        """Run what no process has run or is running; `Stopped` is raised where the user stops it."""
        execution = divide_cores(execution, processes)
        how = (self.root, self.base.table(), self.runs, execution.device, execution.chunk, execution.workers)
        with share(processes - 1, _run_sweep, *how):
            self._run(execution, tell)
        if processes > 1:
            self._run(execution, tell)  # what a process that died has left

    def _run(self, execution: Execution, tell: Tell) -> None:
        folder = SweepFolder.add(self.root, self.base.table(), self.runs)
        run_at = {self.root / run.path: run for run in self.runs}
        jobs = [Job(run.title, config_of(self.base, run), path) for path, run in run_at.items()]
        queue = JobQueue(execution, lambda job: folder.is_done(run_at[job.path]))
        queue.run(jobs, lambda job: tell(sum(map(folder.is_done, self.runs)), len(jobs), job.name))


def _run_sweep(
    root: Path,
    base: Mapping[str, Any],
    runs: tuple[SweepRun, ...],
    device: str,
    chunk: int | None,
    workers: int | None,
    should_stop: ShouldStop,
) -> None:
    """Run what no other process of a sweep runs."""
    sweep = Sweep(root, make_config(base), runs)  # which imports its plug-ins
    sweep.run(Execution(device, chunk, workers, should_stop=should_stop), lambda *_: None)


def config_of(base: ExperimentConfig, run: SweepRun) -> ExperimentConfig:
    arms = read_config(base.table(), run.settings).arms()
    return list(arms.values())[run.place].model_copy(update={"seed": run.seed})


def plan_sweep(
    out: Path | None,
    config: Path | None,
    overrides: Sequence[str],
    vary: Sequence[str],
    seeds: Sequence[int] | None,
    imports: Sequence[str] = (),
) -> Sweep:
    """Every combination of the varied values with every seed; each config is checked before anything is run.

    An algorithm that a key does not touch is run once, not for every value.
    """
    base = load_config(config, overrides, imports)
    root = out or Path("runs") / f"{base.name}-sweep"  # the same each time, so that the same command resumes it
    keys = [option.partition("=")[0].strip() for option in vary]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ConfigError(f"--vary {twice[0]} is given twice; give all values at once: --vary {twice[0]}=A,B,...")
    runs: dict[tuple[tuple[str, ...], int, int], SweepRun] = {}
    combinations = [  # settings by key, and the algorithms
        (dict(zip(keys, settings, strict=True)), list(read_config(base.table(), settings).arms()))
        for settings in itertools.product(*map(split_values, vary))
    ]
    for seed in seeds if seeds is not None else (base.seed,):  # a first table of all, soon
        for settings, algorithms in combinations:
            for place, algorithm in enumerate(algorithms):
                own = tuple(setting for key, setting in settings.items() if touches(key, place))
                run = SweepRun(settings=own, place=place, algorithm=algorithm, seed=seed)
                runs.setdefault((own, place, seed), run)
    return Sweep(root, base, tuple(runs.values()))


def open_sweep(root: Path) -> Sweep:
    """All runs of the sweep in a folder; plug-ins that it needs must have been imported."""
    folder = SweepFolder.open(root)
    found = find_plugins(map(of_name, folder.config.get("imports", ())), str(root), quiet=True)
    return Sweep(root, read_config({**folder.config, "imports": found or None}), folder.runs)


def split_values(vary: str) -> list[str]:
    """`algorithm.lr=0.1,0.3` as settings `algorithm.lr=0.1` and `algorithm.lr=0.3`; lists keep their commas."""
    key, equals, text = vary.partition("=")
    if not equals or not key.strip() or not text.strip():
        raise ConfigError(f"--vary {vary!r}: must be key=value,value,..., such as algorithm.lr=0.1,0.3,1")
    if key.strip() == "seed":
        raise ConfigError("--vary seed=...: give --seeds, over which means are taken")
    try:
        values = tomllib.loads(f"values = [{text}]")["values"]
    except (ValueError, RecursionError):
        values = [word.strip() for word in text.split(",")]  # bare words are strings
    settings = [f"{key.strip()}={json.dumps(value, default=str)}" for value in values]
    if len(set(settings)) < len(settings):
        raise ConfigError(f"--vary {vary}: gives the same value twice; give each once")
    return settings
