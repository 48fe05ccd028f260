"""The exchange between ranks: messages of the agents here are sent to the ranks whose agents receive them, and vice
versa."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock, Payload
from peermask.engine.device import rows_on_cpu
from peermask.engine.link_traffic import LINKS, shards_of
from peermask.engine.round import concatenated
from peermask.engine.simulator import Simulator
from peermask.experiment.build import Experiment
from peermask.experiment.concatenation import Counting, liars_of
from peermask.experiment.folder import RunFolder
from peermask.experiment.metrics import Ledger
from peermask.graph.mixing import Mixing
from peermask.ranks.packed import pack_payload, payload_width, unpack_payload
from peermask.ranks.shards import Routes, heard

if TYPE_CHECKING:
    from peermask.ranks.group import Ranks


class Ranked(Counting):
    """An `Exchange`: A of N agents are here, K messages are those that they hear, in the order of agents.

    Every rank counts what the messages of its own agents cost; the first one writes the tables.
    """

    def __init__(
        self, ranks: Ranks, experiment: Experiment, folder: RunFolder, simulator: Simulator, sent: Payload
    ) -> None:
        self.ranks, self.experiment, self.agents = ranks, experiment, experiment.config.agents
        self.shards = ranks.shards(self.agents)
        own, writes = self.shards[ranks.rank], folder if ranks.first else None
        super().__init__(simulator, Ledger(experiment, writes, sent or None, own, self.all_gather))
        self.ledger.sent = ranks.from_first(self.ledger.sent)
        self.liars = liars_of(experiment, simulator.device)
        self._since = 1  # the round in which the links of now began
        self._hear(experiment.mixing)

    def _hear(self, mixing: Mixing) -> None:
        """Compute what to send to which rank, and how received messages are mixed, from the mixing of all agents."""
        everything, device = self.simulator.algorithm.hears_all, self.simulator.device
        hearing = [torch.arange(self.agents) if everything else heard(mixing.rows(rows)) for rows in self.shards]
        self.routes = Routes.of(hearing, self.agents, self.ranks.rank)
        self.here, columns = self.routes.here, self.routes.columns
        self.outgoing = {rank: rows.to(device) for rank, rows in self.routes.outgoing.items()}
        own = mixing.rows(self.shards[self.ranks.rank])
        own = own.to(device) if everything else own.restrict(columns).to(device)  # [A, K]
        ends = list(accumulate((len(feed.ids) for feed in self.simulator.feeds), initial=0))
        self.mixings = [own.rows(slice(first, end)) for first, end in pairwise(ends)]
        if self.liars is not None:
            self.links = mixing.links.rows(columns).restrict(columns.numpy()).to(device)  # [K, K]

    def play(self, simulator: Simulator, clock: Clock) -> Tensor:
        return simulator.play(clock, self.move).losses

    def move(self, clock: Clock, shared: Sequence[Payload]) -> tuple[Payload, Sequence[Mixing]]:
        if (since := self.experiment.schedule.since(clock.round)) != self._since:
            self._since = since
            self._hear(self.experiment.mixing_of(since))
        before, behind = self.here.start, len(self.routes.columns) - self.here.stop
        received = concatenated(shared, self.simulator.spread, before, behind)
        if received:
            self._fill(received)
            if self.liars is not None:  # liars look at the true messages first
                received = self.liars.told(received, self.links, clock, self.routes.columns.tolist(), self.here)
                self._fill(received)
        self.messages = {name: leaf[self.here] for name, leaf in received.items()}
        return received, self.mixings

    def _fill(self, received: Payload) -> None:
        """Put the messages of other ranks where there is room for them."""
        width = payload_width(received)
        own = {name: leaf[self.here] for name, leaf in received.items()}
        outgoing = {rank: pack_payload(own, rows) for rank, rows in self.outgoing.items()}
        incoming = {rank: (rows.stop - rows.start) * width for rank, rows in self.routes.incoming.items()}
        for rank, packed in self.ranks.swap(outgoing, incoming).items():
            unpack_payload(packed, received, self.routes.incoming[rank])

    def all_gather(self, rows: Tensor) -> Tensor:
        return self.ranks.all_gather(rows, self.agents)

    def gather(self, rows: Tensor) -> Tensor:
        return self.ranks.gather(rows, self.shards)

    def state(self) -> Payload:
        """With changing links all ranks know which receivers remember which senders; each has the histories of its own
        agents."""
        before = self.ledger.before or {}
        if LINKS not in before:
            return super().state()
        shards = shards_of(before[LINKS], self.shards)
        histories = {name: rows_on_cpu([leaf]) for name, leaf in before.items() if name != LINKS}
        collected = {name: self.ranks.gather(rows, shards) for name, rows in histories.items()}
        return {**collected, LINKS: before[LINKS]}
