"""The exchange of a node: publish this agent's message, pull the neighbours', and mix those that arrived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from peermask.algorithms.contract import Clock, algorithms
from peermask.errors import DivergedError
from peermask.fleet.journal import Journal, changes
from peermask.fleet.puller import Absence, Puller, Received
from peermask.fleet.responder import Responder
from peermask.graph.mixing import Ages, Mixing
from peermask.run.assemble import openings
from peermask.run.build import Experiment
from peermask.run.exchange import Abandoned, Exchange
from peermask.run.simulator import Simulator
from peermask.wire import Schema
from peermask.wire.schema import MessageRow, Payload

FLUSH_ROUNDS = 256  # rounds after which their rows are written, however rare checkpoints are


class NodeExchange(Exchange):
    """Exchange of the one agent of a node: A = N = 1, K = itself and those whose messages arrived, by number."""

    def __init__(
        self,
        experiment: Experiment,
        journal: Journal,
        responder: Responder,
        puller: Puller,
        report: Callable[[], None],
        before_round: Callable[[], None] = lambda: None,
    ) -> None:
        self.agent, self.journal, self.report, self.before_round = journal.agent, journal, report, before_round
        self.responder, self.puller, self.around = responder, puller, puller.around
        self.follow(experiment)
        self.sizes, self.rounds = experiment.network.layout.sizes, experiment.config.rounds
        self.messages: Payload = {}  # of the last round; a neighbour may still need it after a restart
        self.absent: list[Absence] = []  # in the last round
        self.reached: int | None = None  # the round to jump to
        self.round = 0  # the last in which messages were exchanged
        self.began = 0.0  # when the round began

    def follow(self, experiment: Experiment) -> None:
        """Use these agents and links from now on."""
        self.experiment = experiment
        self.mixing = experiment.mixing.rows(slice(self.agent, self.agent + 1))  # [1, N]
        options = experiment.config.asynchronous
        self.ages = None if options is None else Ages.of(options.weights, experiment.mixing)
        self.missing = Ages.of_missing(experiment.mixing)
        self.hears_all = algorithms[experiment.config.algorithm.name].make.hears_all
        self.grace = 0.0 if options is None else options.grace  # as a share of a round

    def resume(self, round: int, messages: Payload) -> None:
        """Publish the message of a checkpoint again."""
        self.messages = messages
        if messages:
            self._publish(round, messages)

    def proceed(self, round: int) -> int:
        if self.round:
            self.report()
        if self.around.should_stop():
            raise Abandoned
        self.before_round()
        self.began = self.around.time.monotonic()
        return max(round + 1, min(self.reached or 0, self.rounds))

    def play(self, simulator: Simulator, clock: Clock) -> Tensor:
        return simulator.play(clock, self.move if self.ages is None else self.move_on).losses

    def move(self, clock: Clock, shared: Sequence[Payload]) -> tuple[Payload, Sequence[Mixing]]:
        self.round, own = clock.round, shared[0]
        if not own:  # a method that sends nothing does not wait
            return own, [self.mixing]
        schema = self._publish(clock.round, own)
        mixing = self._mixing_of(clock.round)
        senders = mixing.links.senders.tolist() if self.experiment.schedule.changes else None
        received = self.puller.pull(clock.round, schema, self._opening, senders)
        return self._use(clock.round, own, received, *self._weigh(received, mixing, clock.round))

    def move_on(self, clock: Clock, shared: Sequence[Payload]) -> tuple[Payload, Sequence[Mixing]]:
        """In asynchronous runs: publish, and use the newest messages; wait only for those about to be published."""
        assert self.ages is not None
        self.round, own = clock.round, shared[0]
        if not own:
            return own, [self.mixing]
        grace = self.grace * (self.around.time.monotonic() - self.began)
        received = self.puller.take(clock.round, self._publish(clock.round, own), self._opening, grace)
        self.journal.note_used(clock.round, {j: received.rounds.get(j, 0) for j in self.around.neighbours})
        return self._use(clock.round, own, received, *self.ages.weigh(self.mixing, clock.round, received.rounds))

    def catch_up(self, round: int, own: Payload) -> tuple[Payload, Mixing] | None:
        """What neighbours have published by a round, for an agent that would share `own` but has not published yet."""
        if not own:
            return None
        received = self.puller.newest_messages(round, self._schema(round, own), self._opening)
        weighed = self._weigh(received, self._mixing_of(round), 0)
        return self._stacked(own, received, *weighed) if received.payloads else None

    def _mixing_of(self, round: int) -> Mixing:
        """[1, N]: the neighbours that the agent receives from in a round."""
        if not self.experiment.schedule.changes:
            return self.mixing
        return self.experiment.mixing_of(round).rows(slice(self.agent, self.agent + 1))

    def _use(
        self, round: int, own: Payload, received: Received, columns: Sequence[int], mixing: Mixing
    ) -> tuple[Payload, Sequence[Mixing]]:
        """The messages of these agents [K, ...]; of a neighbour that is missing, the last may be too old to be used."""
        if round == 1:
            self.around.check_somebody_came()
        absent = [one if one.neighbour in columns else replace(one, used=None) for one in received.absent]
        for line in changes(round, self.absent, absent):
            self.responder.say(line)
        self.messages, self.absent, self.reached = own, absent, received.behind
        messages, mixing = self._stacked(own, received, columns, mixing)
        return messages, [mixing]

    def _weigh(self, received: Received, mixing: Mixing, round: int) -> tuple[list[int], Mixing]:
        """The agents whose messages are mixed, and how [1, K]: those before `round` count by their age.

        Where links change, or a server would weigh all agents, older messages are left out: senders of the round before
        are others, and accord has a memory of its own.
        """
        rounds = received.rounds
        fixed = not self.experiment.schedule.changes and not self.hears_all
        if fixed and any(number < round for number in rounds.values()):
            return self.missing.weigh(mixing, round, rounds)
        columns = sorted([self.agent, *(j for j, number in rounds.items() if number >= round)])  # [K]
        return columns, mixing.restrict(torch.tensor(columns))

    def count(self, round: int) -> None:
        self.journal.record(round, self.messages)
        self.journal.write_absences(self.absent)
        if round % FLUSH_ROUNDS == 0:
            self.flush()

    def sent_bytes(self) -> Tensor:
        return torch.tensor([self.journal.sent_before + self.responder.sent_bytes], dtype=torch.float64)

    def flush(self) -> None:
        """Neighbours that have published a round no longer need earlier ones."""
        self.journal.write_trace()
        self.journal.write_traffic(self.responder.take_sent(self.round), self.round)

    def state(self) -> Payload:
        return {name: leaf.cpu() for name, leaf in self.messages.items()}

    def conclude(self, save: Callable[[], None]) -> None:
        """The evaluation that follows counts the last message's bytes too."""
        save()
        self.report()
        if self.ages is None:
            self.puller.finish(self.rounds)
        else:
            self.puller.wait_until_sent(self.rounds)

    def _publish(self, round: int, own: Payload) -> Schema:
        """Publish this agent's message [1, ...] of a round."""
        schema = self._schema(round, own)
        self.responder.publish(round, _rows(own), schema, self._opening)
        return schema

    def _schema(self, round: int, own: Payload) -> Schema:
        rows = _rows(own)
        for name, row in rows.items():
            if row.dtype != np.bool_ and not np.isfinite(row).all():
                raise DivergedError(
                    f"message of agent {self.agent} in round {round} holds a value that is NaN or infinite ({name}); "
                    "try a smaller algorithm.lr"
                )
        return Schema.of(rows, self.sizes)

    def _opening(self, agent: int) -> MessageRow | None:
        """What is assumed of an agent before its first message."""
        return _rows(openings(self.experiment, self.experiment.agents.rows(slice(agent, agent + 1)))) or None

    def _stacked(
        self, own: Payload, received: Received, columns: Sequence[int], mixing: Mixing
    ) -> tuple[Payload, Mixing]:
        """The messages of these agents [K, ...], and their mixing on the same device."""

        def rows(name: str, leaf: Tensor) -> Tensor:
            theirs = (
                leaf[0]
                if j == self.agent
                else torch.from_numpy(np.array(received.payloads[j][name])).view(leaf[0].shape)
                for j in columns
            )
            return torch.stack([row.to(leaf.device) for row in theirs])

        return {name: rows(name, leaf) for name, leaf in own.items()}, mixing.to(next(iter(own.values())).device)


def _rows(payload: Payload) -> MessageRow:
    """One agent's message [1, ...] as the codec takes it."""
    return {name: leaf[0].flatten().cpu().numpy().copy() for name, leaf in payload.items()}
