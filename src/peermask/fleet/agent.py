"""One agent of a fleet from its first round to its last: learns, exchanges, evaluates, saves.

An agent that starts late, or is restarted, finds its neighbours in a later round. With `missing = "wait"` they wait for
it: it plays all rounds from its checkpoint on, and the result is the same as without the interruption. If it needs
rounds that they no longer keep, they go back to an earlier checkpoint. Otherwise they continue, and it jumps to their
round: it skips rounds, and the others lose no time. In an asynchronous run agents neither wait nor jump: each plays all
its rounds at its own pace.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.compute.device import one_thread_each
from peermask.data.dataset import Dataset
from peermask.data.measures import FIGURES
from peermask.data.normalisation import Range
from peermask.errors import NodeError
from peermask.fleet.admission import Admission
from peermask.fleet.environment import SYSTEM_TIME, Line, TimeSource, Transport
from peermask.fleet.exchange import NodeExchange
from peermask.fleet.fleet import Fleet
from peermask.fleet.journal import Journal
from peermask.fleet.messages import ExperimentId
from peermask.fleet.neighbourhood import Neighbourhood
from peermask.fleet.puller import Puller, RollBack
from peermask.fleet.responder import AnswerLimits, Responder
from peermask.fleet.roster import by_roster
from peermask.fleet.status import AgentObserver, Report
from peermask.run.assemble import build_simulator
from peermask.run.build import Experiment
from peermask.run.execution import Execution, Silent, Status
from peermask.run.loop import Loop
from peermask.run.metrics import Evaluation
from peermask.store.checkpoint import Checkpoint, Progress
from peermask.store.folder import write_result
from peermask.store.table import read_table

FINISHED_SECONDS = 3.0  # that an agent restarted after its last round waits for neighbours that need its message


def experiment_id_of(fleet: Fleet, experiment: Experiment) -> ExperimentId:
    kind = kind_of(experiment.dataset)
    rules = f"missing = {fleet.missing}, round_deadline = {fleet.round_deadline:g}, wait_limit = {fleet.wait_limit:g}"
    return ExperimentId(fleet.run, experiment.config.hash, experiment.frozen.checksum, kind, rules)


def kind_of(data: Dataset) -> str:
    """What must be the same on all devices, if each has its own data: shapes and scales of inputs and outputs."""
    if len(data.shape) == 3 and data.has_labels and isinstance(data.normalisation, Range):
        channels, height, width = data.shape
        return f"{width}x{height} images, {channels} channels, {len(data.classes)} classes"
    scales = hashlib.sha256(f"{data.normalisation!r} {data.target_scale!r}".encode()).hexdigest()[:8]
    what = "numbers" if data.vocabulary is None else f"tokens of {data.vocabulary}"
    shape = "x".join(map(str, data.shape))
    return f"{shape} {what}, {data.task} with {len(data.classes)} outputs, mean and std {scales}"


class LastEvaluation(Silent):
    """Observes the loop, for reports."""

    evaluated = 0  # round of the last evaluation; 0: none yet
    accuracy: float | None = None
    loss: float | None = None

    def round(self, clock: Clock, losses: Tensor, sent_bytes: float) -> None:  # noqa: ARG002
        self.loss = float(losses[0])  # the round's message was copied from the device already, so this does not wait

    def evaluation(self, evaluation: Evaluation) -> None:
        self.evaluated, self.accuracy = evaluation.round, float(evaluation.test.main[0])


class NodeAgent:
    """The states, tables and messages of one agent."""

    def __init__(
        self,
        fleet: Fleet,
        experiment: Experiment,
        agent: int,
        out: Path,
        observer: AgentObserver,
        should_stop: Callable[[], bool] = lambda: False,
        device: torch.device | str = "cpu",
        time: TimeSource = SYSTEM_TIME,
        limits: AnswerLimits | None = None,
    ) -> None:
        """`limits`: what neighbours may ask for; by default that of the kind of run."""
        self.fleet, self.experiment, self.rounds, self.agent = fleet, experiment, experiment.config.rounds, agent
        self.observer, self.should_stop, self.time = observer, should_stop, time
        self.journal = Journal(experiment, out, agent, fleet.run)
        waits = experiment.config.asynchronous is None
        if not waits and torch.device(device).type != "cpu":
            raise NodeError(f"asynchronous: agents of such runs compute on a CPU; use --device cpu, not {device}")
        experiment_id = experiment_id_of(fleet, experiment)
        self.responder = Responder(
            agent, fleet.neighbours(agent), experiment_id, observer.say,
            newest_only=not waits, exact=fleet.missing == "wait", limits=limits, rounds=self.rounds, time=time,
        )  # fmt: skip
        self._later: tuple[Fleet, frozenset[int]] | None = None  # a later roster, for the next round
        self._lock = threading.Lock()
        self.device, self._rolled_back_from = torch.device(device), 0  # the round from which this agent last went back
        self._begin()

    def _begin(self) -> None:
        experiment = self.experiment
        self.simulator = build_simulator(experiment, self.device, rows=slice(self.agent, self.agent + 1))
        self.start = Checkpoint(Progress(0, experiment.config.hash, experiment.frozen.checksum), {}, {}, {})

    def restore(self) -> None:
        """Continue from the last good checkpoint, if there is one."""
        checkpoint = self.journal.open(self.observer.say)
        if checkpoint is not None:
            self.simulator.restore(checkpoint.states)
            self.start = checkpoint

    def adopt(self, fleet: Fleet, others: frozenset[int]) -> None:
        """Use a roster from the next round on, and drop messages of `others`. May be called from any thread."""
        with self._lock:
            before = self._later[1] if self._later is not None else frozenset()
            self._later = fleet, before | others

    def run(self, transport: Transport) -> Status:
        """Play all rounds, or until asked to stop. Every wait for neighbours has a time limit."""
        while True:
            try:
                return self._run(transport)
            except RollBack as back:
                self._roll_back(back.round)

    def _check_rollback(self) -> None:
        """With `missing = "wait"`: go back if a neighbour, restarted from an earlier checkpoint, needs earlier rounds.

        So all agents agree on the newest checkpoint that all have. One that cannot go back, or has not played further
        since it last did, says so, and gives its newest message instead.
        """
        needed, newest = self.responder.needed, self.responder.newest
        if not needed:
            return
        before = self.journal.checkpoint_before(needed)
        if before is not None and newest > self._rolled_back_from:
            self._rolled_back_from = newest
            raise RollBack(before)
        self.observer.say(
            f"a neighbour needs the message of round {needed}, and no checkpoint here is that old: it gets the one of "
            f"round {newest}, and the result will differ from that of a run without interruption"
        )
        self.responder.answer_newest()

    def _roll_back(self, round: int) -> None:
        here = self._rolled_back_from
        self.observer.say(f"a neighbour was restarted from an earlier round: going back from round {here} to {round}")
        self.journal.roll_back(round)
        self.responder.start_again()
        self._begin()
        self.restore()

    def _run(self, transport: Transport) -> Status:
        fleet, start, last = self.fleet, self.start, LastEvaluation()
        neighbours, founders = fleet.neighbours(self.agent), self.experiment.config.agents
        around = Neighbourhood(transport, self.responder, neighbours, fleet, self.should_stop, founders, self.time)
        puller = Puller(around, self._admission(), self.rounds)
        puller.check_rollback = self._check_rollback

        def report() -> None:
            alive = len(transport.alive() & frozenset(around.neighbours))
            sent, absent = float(exchange.sent_bytes()), tuple(exchange.absent)
            here = (loop.progress.round, self.rounds, last.accuracy, last.evaluated, sent)
            main = FIGURES[self.experiment.dataset.task][0]
            behind = max(0, around.common_round(joining=True) - loop.progress.round)
            self.observer.round(Report(*here, alive, len(around.neighbours), absent, main, last.loss, behind))

        def follow() -> None:
            self._follow(puller, exchange)

        exchange = NodeExchange(self.experiment, self.journal, self.responder, puller, report, follow)
        # Neighbours discard old rounds, so a checkpoint must be on the disk before the next round begins.
        execution = Execution(observer=last, should_stop=self.should_stop, writes="first")
        loop = Loop(self.experiment, self.journal.folder, self.simulator, exchange, execution, start)
        if start.progress.round:
            self.observer.say(f"continuing after round {start.progress.round}")
        exchange.resume(start.progress.round, start.sent)
        with one_thread_each(), self.simulator:
            self._gather(around)
            exchange.reached = self._first_round(around, exchange)
            status = loop.run()
        report()
        after = loop.progress.round + 1
        self.journal.write_traffic(self.responder.take_sent(after), after)
        if status == "finished":
            if around.neighbours and self.journal.received_nothing(around.neighbours):
                raise NodeError(
                    "no message of a neighbour arrived in any round: "
                    f"the model in {self.journal.folder.path} was learned alone; check addresses, ports and "
                    "certificates (RUST_LOG=warn shows more), and start again in a new folder"
                )
            self._finish(loop.progress, loop.hash, float(exchange.sent_bytes()))
        return status

    def _gather(self, around: Neighbourhood) -> None:
        over = self.start.progress.round >= self.rounds  # only neighbours that still need the last message matter
        end = self.time.monotonic() + self.fleet.start_limit
        lacking = around.gather(FINISHED_SECONDS if over else self.fleet.start_limit)
        for j in sorted(lacking if not over and not self.should_stop() else ()):
            self.observer.say(
                Line(f"agent {j} has not appeared; starting without it", "unseen", "warning", neighbour=j)
            )
        around.check_not_alone()
        if self.experiment.config.asynchronous is not None and not self.start.progress.round:
            around.begin_together(self.experiment.mixing.links.distance_from(self.agent), end - self.time.monotonic())

    def _first_round(self, around: Neighbourhood, exchange: NodeExchange) -> int:
        following = self.start.progress.round + 1
        joining = self.agent >= self.experiment.config.agents and following == 1
        plays_all = self.fleet.missing == "wait" or self.experiment.config.asynchronous is not None
        if plays_all and not joining:
            return following
        first = max(following, min(around.common_round(joining=joining), self.rounds))
        if first > following:
            self.observer.say(f"the fleet is in round {first}; skipping rounds {following} to {first - 1}")
            if following == 1:
                self._join(first, exchange)
        return first

    def _join(self, first: int, exchange: NodeExchange) -> None:
        """Start from what the neighbours have learned so far."""
        simulator, algorithm = self.simulator, self.simulator.algorithm
        (state,), (data,) = simulator.states, simulator.feeds
        # Others send payloads of the same shape as this agent would.
        learned, _ = algorithm.learn(
            state, data, Clock(first, self.rounds, batches=self.experiment.config.local_batches or 1)
        )
        messages = exchange.catch_up(first, algorithm.share(learned))
        if messages is not None:
            received, mixing = messages
            simulator.states = [algorithm.join(state, received, mixing)]

    def _follow(self, puller: Puller, exchange: NodeExchange) -> None:
        """Between two rounds: switch to the latest roster."""
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
        named = ", ".join(map(str, neighbours)) or "none"
        self.observer.say(f"roster {self.fleet.serial} from round {exchange.round + 1} on: neighbours are {named}")

    def _admission(self) -> Admission:
        return Admission(self.simulator.algorithm, self.experiment.agents, self.experiment.network.layout.sizes)

    def _finish(self, progress: Progress, hash: str, sent_bytes: float) -> None:
        evaluated = read_table(self.journal.folder.metrics)
        main = FIGURES[self.experiment.dataset.task][0]
        refused, late = (self.responder.refusals.counts(apart) for apart in (False, True))  # since its last start
        result: dict[str, Any] = {
            "status": "finished",
            "agent": self.agent,
            "round": progress.round,
            "hash": hash,
            "seconds": round(progress.seconds, 3),
            f"test_{main}": float(evaluated.reported_mean(f"test_{main}")[self.agent]),
            "sent_bytes": sent_bytes,
            "absent": {str(j): rounds for j, rounds in self.journal.absent_rounds().items()},
            "refused": {str(j): counts for j, counts in refused.items()},
            "out_of_step": {str(j): counts for j, counts in late.items()},
        }
        write_result(self.journal.folder, result)
