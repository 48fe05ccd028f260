"""The exchange of an asynchronous simulation: agents are in their own rounds, and use messages as a trace says.

A round of the loop is N rounds of agents, one each on average; in the last all have played all of theirs. Within it
agents are computed side by side as long as none is due twice (`waves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock, Payload
from peermask.engine.ages import Ages
from peermask.engine.known import row_of
from peermask.engine.link_traffic import LINKS, Held, LinkHistories
from peermask.engine.round import in_turn
from peermask.engine.simulator import Simulator
from peermask.engine.trace import Event, Trace, waves
from peermask.engine.traffic import Cost, message_measures, schema_of
from peermask.experiment.build import Experiment
from peermask.experiment.counting import Counting
from peermask.experiment.folder import RunFolder
from peermask.experiment.metrics import Ledger
from peermask.experiment.opening import openings
from peermask.graph.mixing import Mixing
from peermask.wire import History

# Shapes: N agents, K messages that one agent mixes, M messages that are still to be used

HELD, LOSSES = ".held", ".losses"  # of a checkpoint: [M, 2] agent and round of each message, after a leaf its rows; [N]


@dataclass(frozen=True)
class Message:
    payload: Payload  # [1, ...]
    measures: Tensor  # [4] what it costs each receiver: see `message_measures`
    # By the history of a receiver: that, the bytes of the frame, whether it is a delta, and the history after it
    coded: dict[int, tuple[Held | None, int, bool, History]] = field(default_factory=dict)


class Unsynchronised(Counting):
    """An `Exchange`: A = N, and every agent has its own messages, K of them."""

    def __init__(
        self, experiment: Experiment, folder: RunFolder, simulator: Simulator, trace: Trace, sent: Payload
    ) -> None:
        super().__init__(simulator, Ledger(experiment, folder))
        config = experiment.config
        assert config.asynchronous is not None
        self.trace, self.rounds, self.batches = trace, config.rounds, config.local_batches or 1
        self.ages = Ages.of(config.asynchronous.weights, experiment.mixing)
        self.mixings = [experiment.mixing.rows(slice(agent, agent + 1)) for agent in range(config.agents)]
        self.sizes = experiment.network.layout.sizes
        self.histories = LinkHistories(openings(experiment, experiment.agents) or None, remembered=config.agents)
        self.held: dict[Event, Message] = {}  # which are still to be used
        self.losses = sent[LOSSES] if sent else torch.full((config.agents,), torch.nan)  # of each agent's last round
        self.first = [trace.order.index((agent, 1)) for agent in range(config.agents)]
        self.taken = torch.zeros(config.agents, 7, dtype=torch.float64)  # measures, bytes, deltas, frames: in a round
        self._saved = sent  # of a checkpoint, until the next message says what it holds

    def play(self, simulator: Simulator, clock: Clock) -> Tensor:
        agents = len(self.mixings)
        done = (clock.round - 1) * agents
        for wave in waves(self.trace.order[done : done + agents]):
            clocks = [Clock(number, self.rounds, batches=self.batches) for _, number in wave]
            ids = [agent for agent, _ in wave]
            self.losses[ids] = simulator.play_some(ids, clocks, partial(self._moved, wave))
            done += len(wave)
            self.held = {event: held for event, held in self.held.items() if self._last_use(event) >= done}
        # An agent that has not played yet has no loss: the mean of the others replaces it.
        late = torch.tensor([place >= done for place in self.first])
        return torch.where(late, self.losses[~late].mean(), self.losses)

    def count(self, round: int) -> None:
        *sums, deltas, frames = self.taken.unbind(1)
        if self.messages:
            paper, ones, bitmap, entropy, coded = (column / frames.clamp(min=1) for column in sums)
            kind = torch.where(frames == 0, 3, torch.where(deltas == 0, 0, torch.where(deltas == frames, 1, 2)))
            self.ledger.record_taken(round, Cost(paper, ones, bitmap, entropy, coded, kind), frames.clone())
        self.taken.zero_()

    def state(self) -> Payload:
        self._restore()
        saved = {**self.histories.tensors(), LOSSES: self.losses.clone()}
        for name in self.messages if self.held else ():
            saved[name + HELD] = torch.cat([message.payload[name] for message in self.held.values()])
        return {**saved, HELD: torch.tensor(list(self.held))} if self.held else saved

    def _moved(self, wave: Sequence[Event], shared: Sequence[Payload]) -> tuple[list[Payload], list[Mixing]]:
        """What each agent shares -> the messages that it mixes [K, ...], and how."""
        self.messages = shared[0]
        if not self.messages:
            return list(shared), [self.mixings[agent] for agent, _ in wave]
        self._restore()
        for event, message in zip(wave, self.simulator.spread(self._message, shared), strict=True):
            self.held[event] = message
        self._take(wave)
        received, mixings = [], []
        for agent, number in wave:
            used = self.trace.used((agent, number))
            columns, mixing = self.ages.weigh(self.mixings[agent], number, used)
            rows = [self.held[j, number if j == agent else used[j]].payload for j in columns]
            received.append({name: torch.cat([row[name] for row in rows]) for name in rows[0]})
            mixings.append(mixing)
        return received, mixings

    def _message(self, payload: Payload) -> Message:
        """A copy: the agent continues while others still use it."""
        copied = {name: leaf.clone() for name, leaf in payload.items()}
        measures = message_measures(copied, self.sizes, in_turn)
        return Message(copied, torch.stack([value[0].double() for value in measures]))

    def _take(self, wave: Sequence[Event]) -> None:
        """Count what reaches these agents: messages that they did not use in the round before, coded against what
        each has heard of the sender."""
        taken: list[tuple[int, int, Message]] = []
        new: dict[tuple[int, int], tuple[int, Message, Held | None]] = {}  # each once, for all receivers
        for agent, number in wave:
            before = self.trace.used((agent, number - 1))
            for j, used in self.trace.used((agent, number)).items():
                message, history = self.held[j, used], self.histories.held[agent].get(j)
                if used != before.get(j):
                    taken.append((agent, j, message))
                    if id(history) not in message.coded:
                        new[id(message), id(history)] = j, message, history
        schema = schema_of(self.messages, self.sizes)

        def coded(sender: int, message: Message, history: Held | None) -> tuple[int, bool, History]:
            return self.histories.coded(row_of(message.payload, 0), schema, history, sender)

        lines = list(new.values())
        for (_, message, history), outcome in zip(
            lines, self.simulator.spread(lambda line: coded(*line), lines), strict=True
        ):
            message.coded[id(history)] = history, *outcome
        for agent, j, message in taken:
            _, size, is_delta, after = message.coded[id(self.histories.held[agent].get(j))]
            self.histories.remember(agent, j, after)
            self.taken[j] += torch.cat([message.measures, torch.tensor([size, is_delta, 1.0], dtype=torch.float64)])

    def _last_use(self, event: Event) -> int:
        return int(self.trace.last_uses[event[0], event[1] - 1])

    def _restore(self) -> None:
        """Restore the messages and histories of a checkpoint."""
        saved, self._saved = self._saved, {}
        if LINKS in saved:
            agents = len(self.mixings)
            like = {name: rows.new_empty(agents, *rows.shape[1:]) for name, rows in saved.items() if "." not in name}
            known = {name: rows for name, rows in saved.items() if not name.endswith((HELD, LOSSES))}
            self.histories.restore(known, like, self.sizes)
        leaves = {name.removesuffix(HELD): rows for name, rows in saved.items() if name.endswith(HELD) and name != HELD}
        for place, (agent, number) in enumerate(saved[HELD].tolist() if HELD in saved else ()):
            payload = {name: rows[place : place + 1] for name, rows in leaves.items()}
            self.messages, self.held[agent, number] = payload, self._message(payload)
