"""Runs an experiment: rounds, evaluations, tables, checkpoints; stops cleanly and goes on exactly."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

import tomli_w
import torch
from torch import Tensor, nn

from peermask.algorithms.contract import Clock
from peermask.data.dataset import Dataset
from peermask.engine.device import pick_device
from peermask.engine.simulator import Simulator
from peermask.errors import DivergedError, RunError
from peermask.experiment.build import Experiment, build, build_simulator
from peermask.experiment.checkpoint import (
    Checkpoint,
    Progress,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from peermask.experiment.config import ExperimentConfig, load_config
from peermask.experiment.folder import RunFolder, read_json, write_atomically, write_json
from peermask.experiment.kept_masks import forget_masks_after, save_masks
from peermask.experiment.manifest import manifest
from peermask.experiment.metrics import Evaluation, Ledger, forget_rounds_after, write_evaluation
from peermask.experiment.result import RunResult, summarise

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


@dataclass(frozen=True)
class Execution:
    """How a run is computed: nothing here changes its result."""

    device: str = "auto"
    chunk: int | None = None
    workers: int | None = None
    observer: Observer = field(default_factory=Silent)
    should_stop: Callable[[], bool] = lambda: False


def run_experiment(
    config: ExperimentConfig,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    execution: Execution | None = None,
    dataset: Dataset | None = None,
    module: nn.Module | None = None,
) -> RunResult:
    """Run a config into a folder, or go on where that folder stopped.

    A config that compares algorithms gives one folder for each, inside `out`; their results are in `compared`.
    """
    execution = execution or Execution()
    device = pick_device(execution.device)
    arms = config.arms()
    root = Path(out) if out is not None else _new_path(config.name)
    experiments = {name: build(arm, dataset, module) for name, arm in arms.items()}
    if len(arms) > 1 and not resume:
        RunFolder(root).create()
        RunFolder(root).checkpoints.rmdir()
        _write_config(root / "compare.toml", config)
    results: list[RunResult] = []
    for name, experiment in experiments.items():
        folder = RunFolder(root / name if len(arms) > 1 else root)
        results.append(_run(experiment, name, folder, device, execution, resume=resume and folder.is_run))
        if results[-1].status == "interrupted":
            break
    return replace(results[0], root=root, compared=tuple(results[1:]), status=results[-1].status)


def resume_experiment(path: Path | str, execution: Execution | None = None) -> RunResult:
    """Go on with the run or comparison in a folder, from its own config."""
    root = Path(path)
    for name in ("compare.toml", "config.toml"):
        if (root / name).is_file():
            return run_experiment(load_config(root / name), root, resume=True, execution=execution)
    raise RunError(f"{root} is not a run folder: it has no config.toml")


def _run(
    experiment: Experiment,
    name: str,
    folder: RunFolder,
    device: torch.device,
    execution: Execution,
    *,
    resume: bool,
) -> RunResult:
    if resume and folder.result.is_file():
        return RunResult.open(folder.path)
    progress = Progress(0, experiment.config.hash, experiment.frozen.checksum)
    checkpoint = _prepare(experiment, folder, device, progress, resume=resume)
    with build_simulator(experiment, device, execution.chunk, execution.workers) as simulator:
        if checkpoint is not None:
            simulator.restore(checkpoint.states)
            progress = checkpoint.progress
        execution.observer.begin(experiment, name, progress.round)
        loop = _Loop(experiment, folder, simulator, execution, checkpoint or Checkpoint(progress, {}, {}, {}))
        status = loop.run()
        execution.observer.end(status)
        if status != "interrupted":
            write_json(folder.result, summarise(experiment, folder, status, loop.progress, final_hash(simulator)))
    return RunResult.open(folder.path)


def _prepare(
    experiment: Experiment, folder: RunFolder, device: torch.device, progress: Progress, *, resume: bool
) -> Checkpoint | None:
    """Make the folder, or find where the run in it stood."""
    if not resume:
        folder.create()
        write_json(folder.manifest, manifest(experiment, device))
        _write_config(folder.config, experiment.config)  # last: a folder with a config is a run
        return None
    _check_same_data(experiment, folder)
    saved = list_checkpoints(folder.checkpoints)
    checkpoint = load_checkpoint(saved[-1], progress.config_hash, progress.frozen_checksum) if saved else None
    forget_rounds_after(folder, checkpoint.progress.round if checkpoint else 0)
    forget_masks_after(folder.masks, checkpoint.progress.round if checkpoint else 0)
    return checkpoint


def _check_same_data(experiment: Experiment, folder: RunFolder) -> None:
    before = read_json(folder.manifest).get("dataset", {}).get("sha256")
    if before != experiment.dataset.fingerprint:
        raise RunError(
            f"{folder.path} was run on {experiment.dataset.name} data with hash {str(before)[:12]}, "
            f"here it is {experiment.dataset.fingerprint[:12]}; give it the data it had"
        )


class _Loop:
    """The rounds of one run, with all that is written between them."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        simulator: Simulator,
        execution: Execution,
        start: Checkpoint,
    ) -> None:
        self.experiment, self.folder, self.simulator = experiment, folder, simulator
        self.execution, self.progress = execution, start.progress
        self.config = experiment.config
        self.ledger = Ledger(experiment, folder, start.sent or None)
        # [N] each, of the rounds since the last evaluation; kept on the device, since looking makes a GPU wait
        self.losses: list[Tensor] = list(start.losses.get("recent", ()))
        self.begun = time.perf_counter() - self.progress.seconds

    def run(self) -> Status:
        config = self.config
        if self._converged():
            return "converged"
        for number in range(self.progress.round + 1, config.rounds + 1):
            clock = Clock(number, config.rounds)
            outcome = self.simulator.play(clock)
            self.progress = replace(self.progress, round=number)
            self.losses.append(outcome.losses)
            if outcome.losses.device.type == "cpu":  # on a GPU looking would wait; evaluations and checkpoints look
                self._finite_losses()
            self.ledger.record(number, outcome.shared)
            self.execution.observer.round(clock, outcome.losses, self.ledger.sent_bytes)
            last = number == config.rounds
            stopping = self.execution.should_stop() and not last
            if last or number % config.evaluation.every == 0:
                self._evaluate(number)
            converged = self._converged()
            if last or stopping or converged or number % config.checkpoint.every == 0:
                self._save()
            if converged or stopping:
                return "converged" if converged else "interrupted"
        return "finished"

    def _evaluate(self, number: int) -> None:
        train_loss = self._finite_losses().mean(0)
        self.losses.clear()
        test, validation = self.simulator.test(), self.simulator.validate()
        self.ledger.flush()
        evaluation = Evaluation(
            number, train_loss, validation, test, self.simulator.densities(), self.ledger.sent, self._seconds()
        )
        write_evaluation(self.folder, evaluation)
        self.execution.observer.evaluation(evaluation)
        self._wait_for_rise(evaluation.plateau_signal)

    def _finite_losses(self) -> Tensor:
        """Losses since the last evaluation; the first that is no number ends the run, before it is saved."""
        recent = torch.stack([loss.cpu() for loss in self.losses])  # [rounds, N]
        wrong = (~torch.isfinite(recent)).nonzero()
        if len(wrong):
            number, agent = self.progress.round - len(recent) + 1 + int(wrong[0, 0]), int(wrong[0, 1])
            saved = list_checkpoints(self.folder.checkpoints)
            kept = f"the last good checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
            raise DivergedError(
                f"the loss of agent {agent} is {float(recent[wrong[0, 0], agent])} in round {number}; {kept}; "
                f"try a smaller algorithm.lr"
            )
        return recent

    def _wait_for_rise(self, signal: float) -> None:
        if math.isnan(signal):
            return
        risen = signal > self.progress.best + self.config.stop.tolerance
        self.progress = replace(
            self.progress,
            best=max(signal, self.progress.best) if risen else self.progress.best,
            waited=0 if risen else self.progress.waited + 1,
        )

    def _converged(self) -> bool:
        return 0 < self.config.stop.patience <= self.progress.waited

    def _save(self) -> None:
        tensors = self.simulator.tensors()
        if self.losses:
            tensors[_RECENT] = self._finite_losses()
        self.ledger.flush()
        self.progress = replace(self.progress, seconds=self._seconds())
        save_checkpoint(self.folder.checkpoints, Checkpoint(self.progress, tensors))
        if self.config.checkpoint.masks:
            save_masks(self.folder.masks, self.progress.round, self.simulator.masks().numpy())

    def _seconds(self) -> float:
        """Since the start, with the time before every resumption."""
        return time.perf_counter() - self.begun


def final_hash(simulator: Simulator) -> str:
    """Over every agent's whole state: equal only for equal runs."""
    digest = hashlib.sha256()
    for name, tensor in sorted(simulator.tensors().items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _write_config(path: Path, config: ExperimentConfig) -> None:
    write_atomically(path, tomli_w.dumps(config.table()).encode())


def _new_path(name: str) -> Path:
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
