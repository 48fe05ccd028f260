"""The rounds of a run, with all that is written between them: the same for the simulator and for a node."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.compute.device import enough_memory, one_thread_each
from peermask.errors import DivergedError
from peermask.run.assemble import agents_at_once, build_simulator
from peermask.run.asynchronous_exchange import AsynchronousExchange
from peermask.run.build import Experiment
from peermask.run.exchange import Abandoned, Exchange, LocalExchange
from peermask.run.execution import Execution, Status
from peermask.run.metrics import Evaluation, Score, write_confusion, write_evaluation
from peermask.run.rank_exchange import RankExchange
from peermask.run.simulator import Simulator
from peermask.run.trace import trace_for
from peermask.store.checkpoint import (
    Background,
    Checkpoint,
    Masks,
    Progress,
    hash_tensors,
    list_checkpoints,
    save_checkpoint,
    save_masks,
)
from peermask.store.folder import RunFolder

ROUNDS_APART = 256  # rounds


@dataclass(frozen=True)
class PlayResult:
    status: Status
    progress: Progress
    hash: str  # of all agents' states at the end, in the process that writes the run


class RecentLosses:
    """Losses since the last evaluation: the latest rounds one by one, those before as a sum.

    Memory must not grow with rounds: evaluations may be rare, and a node runs for weeks.
    Shapes: N agents, R latest rounds."""

    def __init__(self, saved: Mapping[str, Tensor]) -> None:
        """Start empty, or from `saved`, the `tensors()` of a checkpoint."""
        # [N] each: on a CPU floats, which are small; on a GPU tensors there, since looking at one waits for the device
        self._latest: list[list[float] | Tensor] = saved["recent"].tolist() if saved else []
        self._sum = saved.get("sum")  # [N] float64, of the rounds before the latest
        self._summed = int(saved["rounds"]) if "rounds" in saved else 0

    def __bool__(self) -> bool:
        return bool(self._latest)

    @property
    def full(self) -> bool:
        return len(self._latest) > ROUNDS_APART

    def add(self, losses: Tensor) -> None:
        """Add the losses of a round, [N]."""
        self._latest.append(losses.tolist() if losses.device.type == "cpu" else losses)

    def latest(self, rounds: int = 0) -> Tensor:
        """Losses [R, N] of the last `rounds` rounds, or of all that are not summed up."""
        return torch.stack([torch.as_tensor(losses).cpu() for losses in self._latest[-rounds:]])

    def sum_up(self) -> None:
        """Keep only the last round, and the sum of those before it."""
        before = self.latest()[:-1].double()
        self._sum = before.sum(0) if self._sum is None else self._sum + before.sum(0)
        self._summed += len(before)
        del self._latest[:-1]

    def mean(self) -> Tensor:
        """Mean [N] over all rounds since the last evaluation."""
        latest = self.latest()
        if self._sum is None:
            return latest.mean(0)
        return ((self._sum + latest.double().sum(0)) / (self._summed + len(latest))).float()

    def clear(self) -> None:
        self._latest.clear()
        self._sum, self._summed = None, 0

    def tensors(self) -> dict[str, Tensor]:
        """State for a checkpoint; empty without losses."""
        if not self:
            return {}
        latest = {"recent": self.latest()}
        return latest if self._sum is None else {**latest, "sum": self._sum, "rounds": torch.tensor(self._summed)}


class Loop:
    """Loop of rounds that plays, evaluates and saves, from a checkpoint to the end or until asked to stop.

    Shapes: A agents are in this process, N are those whose rows it writes.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        simulator: Simulator,
        exchange: Exchange,
        execution: Execution,
        start: Checkpoint,
    ) -> None:
        self.folder, self.simulator, self.exchange = folder, simulator, exchange
        self.execution, self.progress = execution, start.progress
        self.config = experiment.config
        self.ids: list[int] = exchange.all_gather(torch.tensor(simulator.ids)).tolist()  # N of them
        self.losses = RecentLosses(start.losses)
        self.sent_bytes = float(exchange.sent_bytes().sum())  # when it was last looked at
        self.begun = time.perf_counter() - self.progress.seconds
        self.disk = Background()
        self.last: Evaluation | None = None
        self.hash = ""  # of all agents' states at the end

    def run(self) -> Status:
        with self.disk:  # everything is written when this returns
            try:
                status = self._run()
            except Abandoned:
                self._save()
                return "interrupted"
            if status != "interrupted" and not self.hash:  # it had ended before
                self.hash = hash_tensors(self.states())
            return status

    def _run(self) -> Status:
        config, rounds = self.config, self.config.rounds
        while self.progress.round < rounds and not self._converged():
            number = self._play()
            if number == rounds:
                break
            stopping = self.execution.should_stop()
            if number % config.evaluation.every == 0:
                self._evaluate()
            converged = self._converged()
            if stopping or converged or number % config.checkpoint.every == 0:
                self._save(ended=converged)
            if stopping and not converged:
                return "interrupted"
        if self.progress.round == rounds and self.losses:  # it is not evaluated yet
            self.exchange.conclude(self._save)
            self._evaluate()
            self._save(ended=True)
        return "converged" if self._converged() else "finished"

    def _play(self) -> int:
        number = self.exchange.proceed(self.progress.round)
        clock = Clock(number, self.config.rounds, batches=self.config.local_batches or 1)
        played = self.exchange.play(self.simulator, clock)
        self.progress = replace(self.progress, round=clock.round)
        losses = self.exchange.all_gather(played)
        self.losses.add(losses)
        if losses.device.type == "cpu":  # on a GPU evaluations and checkpoints look
            self._check_losses(self.losses.latest(1))
        if self.losses.full:
            self._check_losses(self.losses.latest())
            self.losses.sum_up()
        self.exchange.count(clock.round)
        self.execution.observer.round(clock, losses, self.sent_bytes)
        return clock.round

    def _evaluate(self) -> None:
        self._check_losses(self.losses.latest())
        train_loss = self.losses.mean()
        self.losses.clear()
        simulator, exchange = self.simulator, self.exchange
        unmixed = simulator.test_unmixed(exchange.messages) if self.config.evaluation.unmixed else None
        evaluation = Evaluation(
            round=self.progress.round,
            train_loss=train_loss,
            validation=self._of_all(simulator.validate()),
            test=self._of_all(simulator.test()),
            density=exchange.all_gather(simulator.densities()),
            sent_bytes=exchange.sent_bytes(),
            seconds=self._seconds(),
            unmixed_accuracy=None if unmixed is None else exchange.all_gather(unmixed),
        )
        self.sent_bytes = float(evaluation.sent_bytes.sum())
        if self.execution.writes != "never":
            write_evaluation(self.folder, evaluation, self.ids)
        self.last = evaluation
        self.execution.observer.evaluation(evaluation)
        self._wait_for_rise(evaluation.plateau_signal)

    def _of_all(self, score: Score) -> Score:
        return score.like(self.exchange.all_gather(score.rows()))  # one exchange for all

    def _check_losses(self, recent: Tensor) -> None:
        """End the run at the first loss [R, N] that is NaN or infinite, before it is saved."""
        wrong = (~torch.isfinite(recent)).nonzero()
        if len(wrong):
            row, place = wrong[0].tolist()
            self.disk.wait()
            saved = list_checkpoints(self.folder.checkpoints)
            checkpoints = f"the last good checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
            raise DivergedError(
                f"the loss of agent {self.ids[place]} is {float(recent[row, place])} in round "
                f"{self.progress.round - len(recent) + 1 + row}; {checkpoints}; try a smaller algorithm.lr"
            )

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

    def _save(self, *, ended: bool = False) -> None:
        self.disk.wait()  # before anything is copied: two copies of all states may be too many
        if self.losses:
            self._check_losses(self.losses.latest())
        self.exchange.flush()
        self.sent_bytes = float(self.exchange.sent_bytes().sum())
        self.progress = replace(self.progress, seconds=self._seconds())
        checkpoint = masks = None
        states = self.states()
        if self.execution.final_checkpoint or not ended:
            checkpoint = Checkpoint(self.progress, states, self.exchange.state(), self.losses.tensors())
        if self.config.checkpoint.masks:
            masks = self.exchange.gather(self.simulator.masks()).numpy()
        if ended and self.last is not None and self.execution.writes != "never":
            write_confusion(self.folder, self.last, self.ids)
        if self.execution.writes != "never":
            self.disk.do(partial(write_state, self.folder, self.progress.round, checkpoint, masks))
        if ended:
            self.hash = hash_tensors(states)
        if self.execution.writes == "first":
            self.disk.wait()

    def states(self) -> dict[str, Tensor]:
        """States of all N agents, in the process that writes the run."""
        return {name: self.exchange.gather(rows) for name, rows in self.simulator.tensors().items()}

    def _seconds(self) -> float:
        """Seconds since the start, with the time before every resumption."""
        return time.perf_counter() - self.begun


def play(
    experiment: Experiment, name: str, folder: RunFolder, device: torch.device, execution: Execution, start: Checkpoint
) -> PlayResult:
    """Play the rounds of a run from a checkpoint: by this process alone, or as one of several ranks."""
    ranks, agents = execution.ranks, experiment.config.agents
    chunk, workers, rows = execution.chunk, execution.workers, slice(None)
    with ExitStack() as stack:
        stack.enter_context(enough_memory(device))
        if ranks is not None:
            asked, rows = execution.should_stop, ranks.shards(agents)[ranks.rank]
            execution = replace(execution, should_stop=lambda: ranks.any(asked()))
            workers = workers or max(1, (os.cpu_count() or 1) // ranks.place.local_size)
            chunk = chunk or agents_at_once(experiment, device, len(range(agents)[rows]), ranks.sharing)
            if device.type == "cpu":
                stack.enter_context(one_thread_each())  # a rank's only agent, too
        if experiment.config.traced_by is not None:
            chunk = 1  # agents are in their own rounds
        simulator = stack.enter_context(build_simulator(experiment, device, chunk, workers, rows))
        if start.states:
            simulator.restore(start.states)
        simulator.record()
        execution.observer.begin(experiment, name, start.progress.round)
        exchange: Exchange
        if experiment.config.traced_by is not None:
            exchange = AsynchronousExchange(experiment, folder, simulator, trace_for(experiment, folder), start.sent)
        elif ranks is None:
            exchange = LocalExchange(experiment, folder, simulator, start.sent)
        else:
            exchange = RankExchange(ranks, experiment, folder, simulator, start.sent)
        loop = Loop(experiment, folder, simulator, exchange, execution, start)
        status = loop.run()
        execution.observer.end(status)
        return PlayResult(status, loop.progress, loop.hash)


def write_state(folder: RunFolder, round: int, checkpoint: Checkpoint | None, masks: Masks | None) -> None:
    """Write the states copied from the simulator after a round.

    Masks are there first: a run that is cut off between the two resumes from the checkpoint before, and writes both
    again.
    """
    with ThreadPoolExecutor(1) as beside:  # masks are compressed while the checkpoint is hashed
        saved = beside.submit(lambda: None if masks is None else save_masks(folder.masks, round, masks))
        if checkpoint is not None:
            save_checkpoint(folder.checkpoints, checkpoint, saved.result)
        saved.result()
