"""One agent of a fleet from its first round to its last: learns, exchanges, evaluates, saves.

An agent that starts late or again finds its neighbours ahead. With `missing = "wait"` they wait for it, so it plays
every round they still keep, and ends as if nothing had happened. Otherwise they have gone on, and it jumps to the
round they have reached: it loses rounds of learning and nobody loses time. In an asynchronous run nobody waits and
nobody jumps: every agent plays all its rounds, at its own pace.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.data.dataset import Dataset
from peermask.data.normalisation import Range
from peermask.engine.device import one_thread_each
from peermask.engine.measures import FIGURES
from peermask.errors import NodeError
from peermask.experiment.build import Experiment, build_simulator
from peermask.experiment.checked import write_result
from peermask.experiment.checkpoint import Checkpoint, Progress
from peermask.experiment.execution import Execution, Silent, Status
from peermask.experiment.loop import Loop, final_hash
from peermask.experiment.metrics import Evaluation
from peermask.experiment.table import read_rows
from peermask.node.admission import Admission
from peermask.node.exchange import NodeExchange
from peermask.node.fleet import Fleet
from peermask.node.journal import Journal
from peermask.node.members import by_roster
from peermask.node.messages import Card
from peermask.node.puller import Absence, Patience, Puller
from peermask.node.responder import Responder
from peermask.node.transport import Transport

FINISHED_LIMIT = 3.0  # seconds an agent that starts again after its last round waits for those who want it


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
    figure: str = "accuracy"  # what `accuracy` is, in words of the task
    loss: float | None = None  # in the last round


class AgentObserver(Protocol):
    def say(self, line: str) -> None: ...
    def round(self, report: Report) -> None: ...


def card_of(fleet: Fleet, experiment: Experiment) -> Card:
    kind = kind_of(experiment.dataset)
    rules = f"missing = {fleet.missing}, round_deadline = {fleet.round_deadline:g}, wait_limit = {fleet.wait_limit:g}"
    return Card(fleet.run, experiment.config.hash, experiment.frozen.checksum, kind, rules)


def kind_of(data: Dataset) -> str:
    """What devices must agree on, each with data of its own: the shape of inputs, outputs, and how both are scaled."""
    if len(data.shape) == 3 and data.has_labels and isinstance(data.normalisation, Range):
        channels, height, width = data.shape
        return f"{width}x{height} images, {channels} channels, {len(data.classes)} classes"
    scales = hashlib.sha256(f"{data.normalisation!r} {data.target_scale!r}".encode()).hexdigest()[:8]
    what = "numbers" if data.vocabulary is None else f"tokens of {data.vocabulary}"
    shape = "x".join(map(str, data.shape))
    return f"{shape} {what}, {data.task} with {len(data.classes)} outputs, mean and std {scales}"


class LastEvaluation(Silent):
    """Watches the loop for what a report tells."""

    evaluated = 0  # round; 0: none yet
    accuracy: float | None = None
    loss: float | None = None

    def round(self, clock: Clock, losses: Tensor, sent_bytes: float) -> None:  # noqa: ARG002
        self.loss = float(losses[0])  # its message has left the device already, so this waits for nothing

    def evaluation(self, evaluation: Evaluation) -> None:
        self.evaluated, self.accuracy = evaluation.round, float(evaluation.test.main[0])


class NodeAgent:
    """The states, tables and messages of one agent; the transport is given once it is open."""

    def __init__(
        self,
        fleet: Fleet,
        experiment: Experiment,
        agent: int,
        out: Path,
        observer: AgentObserver,
        should_stop: Callable[[], bool] = lambda: False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.fleet, self.experiment, self.rounds, self.agent = fleet, experiment, experiment.config.rounds, agent
        self.observer, self.should_stop = observer, should_stop
        self.journal = Journal(experiment, out, agent, fleet.run)
        waits = experiment.config.asynchronous is None
        if not waits and torch.device(device).type != "cpu":
            raise NodeError(f"asynchronous: agents of such a run compute on a CPU; use --device cpu, not {device}")
        card = card_of(fleet, experiment)
        self.responder = Responder(agent, fleet.neighbours(agent), card, observer.say, newest_only=not waits)
        self._later: tuple[Fleet, frozenset[int]] | None = None  # a roster that is not followed yet
        self._lock = threading.Lock()
        self.simulator = build_simulator(experiment, torch.device(device), rows=slice(agent, agent + 1))
        self.start = Checkpoint(Progress(0, experiment.config.hash, experiment.frozen.checksum), {}, {}, {})

    def restore(self) -> None:
        """Go on from the last good checkpoint, if there is one."""
        checkpoint = self.journal.open(self.observer.say)
        if checkpoint is not None:
            self.simulator.restore(checkpoint.states)
            self.start = checkpoint

    def adopt(self, fleet: Fleet, others: frozenset[int]) -> None:
        """Follow a roster from the next round on, and forget what was heard of `others`. From any thread."""
        with self._lock:
            before = self._later[1] if self._later is not None else frozenset()
            self._later = fleet, before | others

    def run(self, transport: Transport) -> Status:
        """Play to the end, or until asked to stop. Ends in bounded time whatever the neighbours do."""
        fleet, start, last = self.fleet, self.start, LastEvaluation()
        patience = Patience(fleet.missing, fleet.round_deadline, fleet.wait_limit, fleet.start_limit)
        puller = Puller(
            transport,
            self.responder,
            fleet.neighbours(self.agent),
            patience,
            self.should_stop,
            self._admission(),
            self.rounds,
            self.experiment.config.agents,
        )

        def report() -> None:
            alive = len(transport.alive() & frozenset(puller.neighbours))
            sent, absent = float(exchange.sent_bytes()), tuple(exchange.absent)
            standing = (loop.progress.round, self.rounds, last.accuracy, last.evaluated, sent)
            main = FIGURES[self.experiment.dataset.task][0]
            self.observer.round(Report(*standing, alive, len(puller.neighbours), absent, main, last.loss))

        def follow() -> None:
            self._follow(puller, exchange)

        exchange = NodeExchange(self.experiment, self.journal, self.responder, puller, report, follow)
        # Neighbours forget old rounds, so that a checkpoint is on the disk before the next begins.
        execution = Execution(observer=last, should_stop=self.should_stop, writes="first")
        loop = Loop(self.experiment, self.journal.folder, self.simulator, exchange, execution, start)
        if start.progress.round:
            self.observer.say(f"going on after round {start.progress.round}")
        exchange.resume(start.progress.round, start.sent)
        with one_thread_each(), self.simulator:
            self._gather(puller)
            exchange.reached = self._first_round(puller, exchange)
            status = loop.run()
        report()
        after = loop.progress.round + 1
        self.journal.write_traffic(self.responder.take_sent(after), after)
        if status == "finished":
            if puller.neighbours and self.journal.heard_nobody(puller.neighbours):
                raise NodeError(
                    f"no neighbour was heard in any round: the model in {self.journal.folder.path} was learned alone; "
                    "check addresses, ports and certificates (RUST_LOG=warn shows more), and start anew"
                )
            self._finish(loop.progress, float(exchange.sent_bytes()))
        return status

    def _gather(self, puller: Puller) -> None:
        over = self.start.progress.round >= self.rounds  # only those who still want the last message matter
        end = time.monotonic() + self.fleet.start_limit
        lacking = puller.gather(FINISHED_LIMIT if over else self.fleet.start_limit)
        for j in sorted(lacking if not over and not self.should_stop() else ()):
            self.observer.say(f"agent {j} has not appeared; beginning without it")
        puller.check_not_alone()
        if self.experiment.config.asynchronous is not None and not self.start.progress.round:
            puller.begin_together(self.experiment.mixing.links.distance_from(self.agent), end - time.monotonic())

    def _first_round(self, puller: Puller, exchange: NodeExchange) -> int:
        following = self.start.progress.round + 1
        joining = self.agent >= self.experiment.config.agents and following == 1
        plays_all = self.fleet.missing == "wait" or self.experiment.config.asynchronous is not None
        if plays_all and not joining:
            return following
        first = max(following, min(puller.catch_up(joining=joining), self.rounds))
        if first > following:
            self.observer.say(f"the fleet is in round {first}; rounds {following} to {first - 1} are left out")
            if following == 1:
                self._join(first, exchange)
        return first

    def _join(self, first: int, exchange: NodeExchange) -> None:
        """Begin from what neighbours have learned by a round."""
        simulator, algorithm = self.simulator, self.simulator.algorithm
        (state,), (data,) = simulator.states, simulator.feeds
        # What would be shared tells what to expect of others.
        learned, _ = algorithm.learn(
            state, data, Clock(first, self.rounds, batches=self.experiment.config.local_batches or 1)
        )
        found = exchange.catch_up(first, algorithm.share(learned))
        if found is not None:
            received, mixing = found
            simulator.states = [algorithm.join(state, received, mixing)]

    def _follow(self, puller: Puller, exchange: NodeExchange) -> None:
        """Between two rounds: go by the latest roster."""
        with self._lock:
            later, self._later = self._later, None
        if later is None:
            return
        self.fleet, others = later
        self.experiment = by_roster(self.experiment, self.fleet)
        neighbours = self.fleet.neighbours(self.agent)
        exchange.follow(self.experiment)
        puller.admit = self._admission()
        puller.follow(neighbours, others)
        named = ", ".join(map(str, neighbours)) or "nobody"
        self.observer.say(f"roster {self.fleet.serial} from round {exchange.round + 1} on: neighbours are {named}")

    def _admission(self) -> Admission:
        return Admission(self.simulator.algorithm, self.experiment.agents, self.experiment.network.layout.sizes)

    def _finish(self, progress: Progress, sent_bytes: float) -> None:
        evaluated = read_rows(self.journal.folder.metrics)[-1]
        main = FIGURES[self.experiment.dataset.task][0]
        result: dict[str, Any] = {
            "status": "finished",
            "agent": self.agent,
            "round": progress.round,
            "hash": final_hash(self.simulator.tensors()),
            "seconds": round(progress.seconds, 3),
            f"test_{main}": float(evaluated[f"test_{main}"]),
            "sent_bytes": sent_bytes,
            "absent": {str(j): rounds for j, rounds in self.journal.absent_rounds().items()},
            "refused": {str(j): counts for j, counts in self.responder.refusals.counts().items()},  # of its last life
        }
        write_result(self.journal.folder, result)
