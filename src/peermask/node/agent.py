"""One agent of a fleet from its first round to its last: learns, exchanges, evaluates, saves.

An agent that starts late or again finds its neighbours ahead. With `missing = "wait"` they wait for it, so it plays
every round they still keep, and ends as if nothing had happened. Otherwise they have gone on, and it jumps to the
round they have reached: it loses rounds of learning and nobody loses time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock, Payload
from peermask.engine.device import made_current, one_thread_each
from peermask.engine.round import play_round
from peermask.engine.simulator import Simulator
from peermask.errors import DivergedError
from peermask.experiment.build import Experiment, assemble
from peermask.experiment.checkpoint import Checkpoint, Progress, save_checkpoint
from peermask.experiment.kept_masks import save_masks
from peermask.experiment.loop import final_hash
from peermask.experiment.metrics import Evaluation, write_evaluation
from peermask.files import write_json
from peermask.node.exchange import NodeExchange
from peermask.node.fleet import Fleet
from peermask.node.journal import Journal, changes
from peermask.node.messages import Card
from peermask.node.puller import Abandoned, Absence, Patience, Puller
from peermask.node.responder import Responder
from peermask.node.transport import Transport

T = TypeVar("T")
FINISHED_LIMIT = 3.0  # seconds an agent that starts again after its last round waits for those who want it
NodeStatus = Literal["finished", "interrupted"]


@dataclass(frozen=True)
class Report:
    """How an agent stands after a round."""

    round: int
    rounds: int
    accuracy: float | None  # of the last evaluation
    evaluated: int  # the round of it; 0: none yet
    sent_bytes: float
    alive: int
    neighbours: int
    absent: tuple[Absence, ...]


class Observer(Protocol):
    def say(self, line: str) -> None: ...
    def round(self, report: Report) -> None: ...


def card_of(fleet: Fleet, experiment: Experiment) -> Card:
    data = experiment.dataset
    channels, height, width = data.shape
    kind = f"{width}x{height} images, {channels} channels, {len(data.classes)} classes"
    return Card(fleet.run, experiment.config.hash, experiment.frozen.checksum, kind)


class NodeAgent:
    """The states, tables and messages of one agent; the transport is given once it is open."""

    def __init__(
        self,
        fleet: Fleet,
        experiment: Experiment,
        agent: int,
        out: Path,
        observer: Observer,
        should_stop: Callable[[], bool] = lambda: False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.fleet, self.experiment, self.config, self.agent = fleet, experiment, experiment.config, agent
        self.observer, self.should_stop = observer, should_stop
        self.journal = Journal(experiment, out, agent)
        self.responder = Responder(agent, fleet.neighbours(agent), card_of(fleet, experiment), observer.say)
        row = slice(agent, agent + 1)
        self.device = torch.device(device)
        algorithm, feed = assemble(experiment, self.device)
        self.mixing = experiment.mixing.rows(row)  # [1, N]
        self.simulator = Simulator(algorithm, experiment.agents.rows(row), feed.rows(row), self.mixing, chunk=1)
        self.progress = Progress(0, self.config.hash, experiment.frozen.checksum)
        self.losses: list[Tensor] = []  # [1] each, of the rounds since the last evaluation
        self.sent: Payload = {}  # the last message [1, ...]: after a restart somebody may still want it
        self.absent: list[Absence] = []  # of the last round
        self.accuracy: float | None = None
        self.evaluated = 0
        self.begun = time.perf_counter()

    def restore(self) -> None:
        """Go on from the last good checkpoint, if there is one."""
        checkpoint = self.journal.open(self.observer.say)
        if checkpoint is None:
            return
        self.simulator.restore(checkpoint.states)
        self.progress = checkpoint.progress
        self.losses = list(checkpoint.losses.get("recent", ()))
        self.sent = checkpoint.sent
        self.begun -= self.progress.seconds

    def run(self, transport: Transport) -> NodeStatus:
        """Play to the end, or until asked to stop. Ends in bounded time whatever the neighbours do."""
        fleet = self.fleet
        patience = Patience(fleet.missing, fleet.round_deadline, fleet.wait_limit, fleet.start_limit)
        puller = Puller(transport, self.responder, fleet.neighbours(self.agent), patience, self.should_stop)
        sizes = self.experiment.network.layout.sizes
        exchange = NodeExchange(self.agent, self.mixing, sizes, self.responder, puller)
        if self.progress.round:
            self.observer.say(f"going on after round {self.progress.round}")
        if self.sent:
            exchange.publish(self.progress.round, self.sent)
        with one_thread_each(), made_current(self.device):
            self._gather(puller)
            with suppress(Abandoned):
                self._play_all(puller, exchange, transport)
            if self.progress.round < self.config.rounds:
                self.journal.write_traffic(self.responder.sent, self.progress.round + 1)
                self._save()
                return "interrupted"
            puller.farewell(self.config.rounds)
            self._evaluate()
            self._report(transport)
        self._finish()
        return "finished"

    def _play_all(self, puller: Puller, exchange: NodeExchange, transport: Transport) -> None:
        number = self._first_round(puller)
        while number <= self.config.rounds and not self.should_stop():
            self._play(number, exchange)
            self._report(transport)
            number = max(number + 1, min(exchange.behind or 0, self.config.rounds))

    def _gather(self, puller: Puller) -> None:
        over = self.progress.round >= self.config.rounds  # only those who still want the last message matter
        lacking = puller.gather(FINISHED_LIMIT if over else self.fleet.start_limit)
        for j in sorted(lacking if not over and not self.should_stop() else ()):
            self.observer.say(f"agent {j} has not appeared; beginning without it")
        puller.check_not_alone()

    def _first_round(self, puller: Puller) -> int:
        following = self.progress.round + 1
        if self.fleet.missing == "wait":
            return following
        first = max(following, min(puller.catch_up(), self.config.rounds))
        if first > following:
            self.observer.say(f"the fleet is in round {first}; rounds {following} to {first - 1} are left out")
        return first

    def _play(self, number: int, exchange: NodeExchange) -> None:
        clock = Clock(number, self.config.rounds)
        simulator = self.simulator
        outcome = play_round(simulator.algorithm, simulator.states, simulator.feeds, exchange, clock, in_turn)
        simulator.states = outcome.states
        self.progress = replace(self.progress, round=number)
        self._check_finite(outcome.losses)
        self.losses.append(outcome.losses)
        self.sent = exchange.own
        self.journal.record(number, exchange.own)
        self.journal.write_absences(exchange.absent)
        for line in changes(number, self.absent, exchange.absent):
            self.observer.say(line)
        self.absent = exchange.absent
        last = number == self.config.rounds  # evaluated once the last message has been handed out and counted
        if number % self.config.evaluation.every == 0 and not last:
            self._evaluate()
        if number % self.config.checkpoint.every == 0 or last:
            self._save()

    def _report(self, transport: Transport) -> None:
        neighbours = frozenset(self.fleet.neighbours(self.agent))
        alive = len(transport.alive() & neighbours)
        absent = tuple(self.absent)
        self.observer.round(
            Report(
                self.progress.round,
                self.config.rounds,
                self.accuracy,
                self.evaluated,
                self.sent_bytes,
                alive,
                len(neighbours),
                absent,
            )
        )

    @property
    def sent_bytes(self) -> float:
        return self.journal.sent_before + sum(sent.bytes for sent in self.responder.sent.values())

    def _evaluate(self) -> None:
        train_loss = torch.stack([loss.cpu() for loss in self.losses]).mean(0)  # [1]
        self.losses.clear()
        test, validation = self.simulator.test(), self.simulator.validate()
        evaluation = Evaluation(
            self.progress.round,
            train_loss,
            validation,
            test,
            self.simulator.densities(),
            torch.tensor([self.sent_bytes], dtype=torch.float64),
            time.perf_counter() - self.begun,
        )
        write_evaluation(self.journal.folder, evaluation, first=self.agent)
        self.accuracy, self.evaluated = float(test.accuracy[0]), self.progress.round

    def _save(self) -> None:
        self.progress = replace(self.progress, seconds=time.perf_counter() - self.begun)
        # Neighbours that have sent this round have all they need of those before it.
        self.journal.write_traffic(self.responder.sent, self.progress.round)
        losses = {"recent": torch.stack([loss.cpu() for loss in self.losses])} if self.losses else {}
        sent = {name: leaf.cpu() for name, leaf in self.sent.items()}
        folder = self.journal.folder
        save_checkpoint(folder.checkpoints, Checkpoint(self.progress, self.simulator.tensors(), sent, losses))
        if self.config.checkpoint.masks:
            save_masks(folder.masks, self.progress.round, self.simulator.masks().numpy())

    def _finish(self) -> None:
        self.journal.write_traffic(self.responder.sent, self.config.rounds + 1)
        result: dict[str, Any] = {
            "status": "finished",
            "agent": self.agent,
            "round": self.progress.round,
            "hash": final_hash(self.simulator),
            "seconds": round(self.progress.seconds, 3),
            "test_accuracy": self.accuracy,
            "sent_bytes": self.sent_bytes,
            "absent": {str(j): rounds for j, rounds in self.journal.absent_rounds().items()},
        }
        write_json(self.journal.folder.result, result)

    def _check_finite(self, losses: Tensor) -> None:
        if not bool(torch.isfinite(losses).all()):
            raise DivergedError(
                f"the loss of agent {self.agent} is {float(losses[0])} in round {self.progress.round}; "
                "try a smaller algorithm.lr"
            )


def in_turn(function: Callable[..., T], /, *columns: Iterable[Any]) -> list[T]:
    return list(map(function, *columns))
