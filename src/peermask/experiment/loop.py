"""The rounds of a run, with all that is written between them."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock, Payload
from peermask.engine.device import rows_on_cpu
from peermask.engine.simulator import Simulator
from peermask.errors import DivergedError
from peermask.experiment.background import Background
from peermask.experiment.build import Experiment
from peermask.experiment.checkpoint import Checkpoint, list_checkpoints, save_checkpoint
from peermask.experiment.execution import Execution, Status
from peermask.experiment.folder import RunFolder
from peermask.experiment.kept_masks import Masks, save_masks
from peermask.experiment.metrics import Evaluation, Ledger, write_evaluation


class Loop:
    """Plays, evaluates and saves from a checkpoint to the end, or until asked to stop."""

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
        self.disk = Background()

    def run(self) -> Status:
        with self.disk:  # everything is written when this returns
            return self._run()

    def _run(self) -> Status:
        config = self.config
        if self._converged():
            return "converged"
        for number in range(self.progress.round + 1, config.rounds + 1):
            clock = Clock(number, config.rounds)
            outcome = self.simulator.play(clock)
            self.progress = replace(self.progress, round=number)
            self.losses.append(outcome.losses)
            if outcome.losses.device.type == "cpu":  # on a GPU looking would wait; evaluations and checkpoints look
                self._finite_losses(self.losses[-1:])
            self.ledger.record(number, outcome.shared, self.simulator.spread)
            self.execution.observer.round(clock, outcome.losses, self.ledger.sent_bytes)
            last = number == config.rounds
            stopping = self.execution.should_stop() and not last
            if last or number % config.evaluation.every == 0:
                self._evaluate(number, outcome.shared)
            converged = self._converged()
            if last or stopping or converged or number % config.checkpoint.every == 0:
                self._save(ended=last or converged)
            if converged or stopping:
                return "converged" if converged else "interrupted"
        return "finished"

    def _evaluate(self, number: int, shared: Payload) -> None:
        train_loss = self._finite_losses(self.losses).mean(0)
        self.losses.clear()
        test, validation = self.simulator.test(), self.simulator.validate()
        unmixed = self.simulator.test_unmixed(shared) if self.config.evaluation.unmixed else None
        self.ledger.flush()
        evaluation = Evaluation(
            number, train_loss, validation, test, self.simulator.densities(), self.ledger.sent, self._seconds(), unmixed
        )
        write_evaluation(self.folder, evaluation)
        self.execution.observer.evaluation(evaluation)
        self._wait_for_rise(evaluation.plateau_signal)

    def _finite_losses(self, latest: Sequence[Tensor]) -> Tensor:
        """The losses of the latest rounds; the first that is no number ends the run, before it is saved."""
        recent = torch.stack([loss.cpu() for loss in latest])  # [rounds, N]
        wrong = (~torch.isfinite(recent)).nonzero()
        if len(wrong):
            number, agent = self.progress.round - len(recent) + 1 + int(wrong[0, 0]), int(wrong[0, 1])
            self.disk.wait()
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

    def _save(self, *, ended: bool) -> None:
        self.disk.wait()  # before anything is copied: two copies of all states may be too many
        losses = {"recent": self._finite_losses(self.losses)} if self.losses else {}
        self.ledger.flush()
        self.progress = replace(self.progress, seconds=self._seconds())
        checkpoint = masks = None
        if self.execution.final_checkpoint or not ended:
            sent = {name: rows_on_cpu([leaf]) for name, leaf in (self.ledger.before or {}).items()}
            checkpoint = Checkpoint(self.progress, self.simulator.tensors(), sent, losses)
        if self.config.checkpoint.masks:
            masks = self.simulator.masks().numpy()
        self.disk.do(partial(write_state, self.folder, self.progress.round, checkpoint, masks))

    def _seconds(self) -> float:
        """Since the start, with the time before every resumption."""
        return time.perf_counter() - self.begun


def write_state(folder: RunFolder, round: int, checkpoint: Checkpoint | None, masks: Masks | None) -> None:
    """What was copied from the simulator after a round.

    Masks come first: a run that is cut off between the two resumes from the checkpoint before, and writes both again.
    """
    if masks is not None:
        save_masks(folder.masks, round, masks)
    if checkpoint is not None:
        save_checkpoint(folder.checkpoints, checkpoint)


def final_hash(simulator: Simulator) -> str:
    """Over every agent's whole state: equal only for equal runs."""
    digest = hashlib.sha256()
    for name, tensor in sorted(simulator.tensors().items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
