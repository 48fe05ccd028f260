"""The exchange of a simulation by a trace, asynchronous or with deaths: agents are in their own rounds, and use
messages as the trace says.

A round of the loop is N rounds of agents, one each on average; in the last all have played all of theirs. Within it
agents are computed side by side as long as none is due twice (`waves`). An agent that has learned and not fused
yet at the end of a round of the loop counts as it was before: a resumed run lets it learn once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.graph.mixing import Ages, Mixing
from peermask.run.assemble import openings
from peermask.run.build import Experiment
from peermask.run.exchange import Exchange
from peermask.run.ledger import LINKS, Ledger, LinkHistories, SavedHistory
from peermask.run.simulator import Simulator
from peermask.run.trace import FUSE, Event, Trace, absent_rounds, waves
from peermask.store.folder import RunFolder
from peermask.wire import History, Schema
from peermask.wire.cost import Cost, in_turn, kinds, message_measures
from peermask.wire.schema import Payload, row_of

# Shapes: N agents, K messages that one agent mixes, M messages that are still to be used

HELD, LOSSES = ".held", ".losses"  # of a checkpoint: [M, 2] agent and round of each message, after a leaf its rows; [N]


@dataclass(frozen=True)
class Message:
    payload: Payload  # [1, ...]
    measures: Tensor  # [4] what it costs each receiver: see `message_measures`
    # By the history of a receiver: that, the bytes of the frame, whether it is a delta, and the history after it
    coded: dict[int, tuple[SavedHistory | None, int, bool, History]] = field(default_factory=dict)


class AsynchronousExchange(Exchange):
    """An `Exchange`: A = N, and every agent has its own messages, K of them."""

    def __init__(
        self, experiment: Experiment, folder: RunFolder, simulator: Simulator, trace: Trace, sent: Payload
    ) -> None:
        super().__init__(simulator, Ledger(experiment, folder))
        config, options = experiment.config, experiment.config.asynchronous
        self.trace, self.rounds, self.batches = trace, config.rounds, config.local_batches or 1
        missing = Ages.of_missing(experiment.mixing)
        self.ages = missing if options is None else Ages.of(options.weights, experiment.mixing)
        self.absent = absent_rounds(config)
        self.mixings = [experiment.mixing.rows(slice(agent, agent + 1)) for agent in range(config.agents)]
        self.sizes = experiment.network.layout.sizes
        self.histories = LinkHistories(openings(experiment, experiment.agents) or None, remembered=config.agents)
        self.unused: dict[Event, Message] = {}  # by agent and round, until the last use
        self.losses = sent[LOSSES] if sent else torch.full((config.agents,), torch.nan)  # of each agent's last round
        self.learned: dict[int, Any] = {}  # agent -> its state between the halves of its round
        self.begun: set[int] = set()  # agents that have ever learned
        self.taken = torch.zeros(config.agents, 7, dtype=torch.float64)  # measures, bytes, deltas, frames: in a round
        self._saved = sent  # of a checkpoint, until the next message says what it holds

    def play(self, simulator: Simulator, clock: Clock) -> Tensor:  # noqa: ARG002 (its own)
        agents = len(self.mixings)
        done = (clock.round - 1) * 2 * agents
        if not self.begun:
            self._resume_from(done)
        for learning, fusing in waves(self.trace.order[done : done + 2 * agents]):
            self._learn(self._without_absent(learning))
            self._fuse(self._without_absent(fusing))
            done += len(learning) + len(fusing)
            last = self.trace.last_uses
            self.unused = {
                event: message for event, message in self.unused.items() if last[event[0], event[1] - 1] >= done
            }
        # An agent that has not played yet has no loss: the mean of the others replaces it.
        late = torch.tensor([agent not in self.begun for agent in range(agents)])
        return torch.where(late, self.losses[~late].mean(), self.losses)

    def _resume_from(self, done: int) -> None:
        """A checkpoint was made after so many halves: agents that were between theirs learn once more."""
        unfinished: dict[int, int] = {}
        for agent, number, half in self.trace.order[:done]:
            if not self._without_absent([(agent, number)]):
                continue
            self.begun.add(agent)
            if half == FUSE:
                del unfinished[agent]
            else:
                unfinished[agent] = number
        outcomes = self._play_half(list(unfinished.items()))
        self.learned.update((agent, state) for agent, (state, _) in zip(unfinished, outcomes, strict=True))

    def _without_absent(self, events: Sequence[Event]) -> list[Event]:
        """Leave out what is not played: a dead agent keeps its state."""
        return [(agent, number) for agent, number in events if number not in self.absent.get(agent, ())]

    def _play_half(self, events: Sequence[Event]) -> list[tuple[Any, Tensor]]:
        return self.simulator.learn_some([agent for agent, _ in events], self._clocks(events))

    def _clocks(self, events: Sequence[Event]) -> list[Clock]:
        return [Clock(number, self.rounds, batches=self.batches) for _, number in events]

    def _learn(self, events: Sequence[Event]) -> None:
        """The first half of these rounds: learn, and publish a message."""
        outcomes = self._play_half(events)
        shared = [self.simulator.algorithm.share(state) for state, _ in outcomes]
        for (agent, _), (state, loss) in zip(events, outcomes, strict=True):
            self.begun.add(agent)
            self.learned[agent], self.losses[agent] = state, loss[0]
        if not shared or not shared[0]:
            return
        self.messages = shared[0]
        self._restore()
        for event, message in zip(events, self.simulator.spread(self._message, shared), strict=True):
            self.unused[event] = message

    def _fuse(self, events: Sequence[Event]) -> None:
        """The second half: use the messages that the trace says."""
        received, mixings = self._receive(events)
        ids = [agent for agent, _ in events]
        learned = [self.learned.pop(agent) for agent in ids]
        self.simulator.fuse_some(ids, learned, received, mixings, self._clocks(events))

    def count(self, round: int) -> None:
        *sums, deltas, frames = self.taken.unbind(1)
        if self.messages:
            paper, ones, bitmap, entropy, coded = (column / frames.clamp(min=1) for column in sums)
            cost = Cost(paper, ones, bitmap, entropy, coded, kinds(frames, deltas))
            self.ledger.pending.append((round, cost, frames.clone()))
        self.taken.zero_()

    def state(self) -> Payload:
        self._restore()
        saved = {**self.histories.tensors(), LOSSES: self.losses.clone()}
        for name in self.messages if self.unused else ():
            saved[name + HELD] = torch.cat([message.payload[name] for message in self.unused.values()])
        return {**saved, HELD: torch.tensor(list(self.unused))} if self.unused else saved

    def _receive(self, events: Sequence[Event]) -> tuple[list[Payload], list[Mixing]]:
        """The messages that each agent mixes [K, ...], and how."""
        self._restore()
        if not self.messages:  # of a method that sends none
            return [{}] * len(events), [self.mixings[agent] for agent, _ in events]
        self._count_traffic(events)
        received, mixings = [], []
        for agent, number in events:
            used = self.trace.messages_used((agent, number))
            columns, mixing = self.ages.weigh(self.mixings[agent], number, used)
            rows = [self.unused[j, number if j == agent else used[j]].payload for j in columns]
            received.append({name: torch.cat([row[name] for row in rows]) for name in rows[0]})
            mixings.append(mixing)
        return received, mixings

    def _message(self, payload: Payload) -> Message:
        """A copy: the agent goes on while others still use it."""
        copied = {name: leaf.clone() for name, leaf in payload.items()}
        measures = message_measures(copied, self.sizes, in_turn)
        return Message(copied, torch.stack([value[0].double() for value in measures]))

    def _count_traffic(self, events: Sequence[Event]) -> None:
        """Count what reaches these agents: messages that they did not use in the round before, coded against what
        each has heard of the sender."""
        taken: list[tuple[int, int, Message]] = []
        new: dict[tuple[int, int], tuple[int, Message, SavedHistory | None]] = {}  # each once, for all receivers
        for agent, number in events:
            before = self.trace.messages_used((agent, number - 1))
            for j, used in self.trace.messages_used((agent, number)).items():
                message, history = self.unused[j, used], self.histories.by_receiver[agent].get(j)
                if used != before.get(j):
                    taken.append((agent, j, message))
                    if id(history) not in message.coded:
                        new[id(message), id(history)] = j, message, history
        schema = Schema.of_rows(self.messages, self.sizes)

        def code(sender: int, message: Message, history: SavedHistory | None) -> None:
            outcome = self.histories.code(row_of(message.payload, 0), schema, history, sender)
            message.coded[id(history)] = history, *outcome

        self.simulator.spread(lambda line: code(*line), new.values())
        for agent, j, message in taken:
            _, size, is_delta, after = message.coded[id(self.histories.by_receiver[agent].get(j))]
            self.histories.remember(agent, j, after)
            self.taken[j] += torch.cat([message.measures, torch.tensor([size, is_delta, 1.0], dtype=torch.float64)])

    def _restore(self) -> None:
        """Go on with the messages and histories of a checkpoint."""
        saved, self._saved = self._saved, {}
        if LINKS in saved:
            agents = len(self.mixings)
            like = {name: rows.new_empty(agents, *rows.shape[1:]) for name, rows in saved.items() if "." not in name}
            known = {name: rows for name, rows in saved.items() if not name.endswith((HELD, LOSSES))}
            self.histories.restore(known, like, self.sizes)
        leaves = {name.removesuffix(HELD): rows for name, rows in saved.items() if name.endswith(HELD) and name != HELD}
        for place, (agent, number) in enumerate(saved[HELD].tolist() if HELD in saved else ()):
            payload = {name: rows[place : place + 1] for name, rows in leaves.items()}
            self.messages, self.unused[agent, number] = payload, self._message(payload)
