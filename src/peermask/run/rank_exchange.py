"""The exchange between ranks: which messages a rank needs, and how they are sent as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.compute.device import rows_on_cpu
from peermask.graph.mixing import Mixing
from peermask.run.build import Experiment
from peermask.run.exchange import Exchange, liars_of
from peermask.run.ledger import LINKS, Ledger, shards_of
from peermask.run.simulator import Simulator, join_messages
from peermask.store.folder import RunFolder
from peermask.wire.schema import Payload

if TYPE_CHECKING:
    from peermask.run.rank_group import Ranks

# Which agents a rank has, and which messages it needs.


def divide(agents: int, size: int) -> list[slice]:
    """Divide agents between ranks: in order, and each as many as any other, or one more."""
    return [slice(agents * rank // size, agents * (rank + 1) // size) for rank in range(size)]


def senders_heard(mixing: Mixing) -> Tensor:
    """The agents whose messages these receivers hear, themselves included, in order."""
    return torch.from_numpy(mixing.closed.messages_heard[0])  # [K]


@dataclass(frozen=True)
class Routes:
    """Routes of messages between one rank and each other. Messages are in the order of agents, and so are ranks."""

    columns: Tensor  # [K] the senders of the messages that are here after an exchange
    here: slice  # which of these are of the agents here
    outgoing: dict[int, Tensor]  # rank -> which messages of the agents here it hears, counted from the first of them
    incoming: dict[int, slice]  # rank -> which of the K messages come from it

    @classmethod
    def of(cls, hearing: Sequence[Tensor], agents: int, rank: int) -> Routes:
        """Find the routes of one rank from what each rank hears."""
        size, columns = len(hearing), hearing[rank]
        shards = divide(agents, size)
        sends = {other: hearing[other][_within(hearing[other], shards[rank])] for other in range(size)}
        comes = {other: _within(columns, shards[other]) for other in range(size)}
        return cls(
            columns,
            comes[rank],
            {other: ids - shards[rank].start for other, ids in sends.items() if other != rank and len(ids)},
            {other: rows for other, rows in comes.items() if other != rank and rows.stop > rows.start},
        )


def _within(ids: Tensor, part: slice) -> slice:
    """Find the places in ascending ids of those in a range."""
    first, end = torch.searchsorted(ids, torch.tensor([part.start, part.stop])).tolist()
    return slice(first, end)


# Messages as bytes between ranks: masks eight weights to a byte, real values unchanged.

# All that a state or message is made of; ranks name a type by its place here
DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64,
    torch.float16,
)  # fmt: skip
PLACES = (128, 64, 32, 16, 8, 4, 2, 1)  # of a byte's bits, the first weight at the top


def pack(rows: Tensor) -> Tensor:
    """[R, ...] -> its bytes [R, bytes a row] uint8, where it lies."""
    flat = rows.reshape(len(rows), -1)
    if flat.dtype != torch.bool:
        return flat.contiguous().view(torch.uint8)
    if flat.device.type == "cpu":
        return torch.from_numpy(np.packbits(flat.numpy(), axis=1))
    return pack_bits(flat)


def unpack(packed: Tensor, out: Tensor) -> None:
    """The inverse: what `pack` gave, written into rows [R, ...] of the type and shape they had."""
    flat = out.view(len(out), -1)
    if flat.dtype != torch.bool:
        flat.copy_(packed.reshape(-1).view(flat.dtype).view_as(flat))
    elif flat.device.type == "cpu":
        flat.copy_(torch.from_numpy(np.unpackbits(packed.numpy(), axis=1, count=flat.shape[1])))
    else:
        flat.copy_(unpack_bits(packed, flat.shape[1]))


def pack_bits(masks: Tensor) -> Tensor:
    """[R, P] bool -> [R, ceil(P / 8)] uint8 on any device; numpy does the same faster on a CPU."""
    padded = torch.nn.functional.pad(masks.view(torch.uint8), (0, -masks.shape[1] % 8))
    places = torch.tensor(PLACES, dtype=torch.uint8, device=masks.device)
    return (padded.view(len(masks), -1, 8) * places).sum(2, dtype=torch.uint8)


def unpack_bits(packed: Tensor, width: int) -> Tensor:
    """[R, ceil(P / 8)] uint8 -> [R, P] bool."""
    places = torch.tensor(PLACES, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(2) & places).view(len(packed), -1)[:, :width].bool()


def packed_width(rows: Tensor) -> int:
    """Count the bytes of a packed row."""
    width = prod(rows.shape[1:])
    return -(-width // 8) if rows.dtype == torch.bool else width * rows.element_size()


def pack_payload(payload: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """Some rows of all leaves as one string of bytes, leaf after leaf."""
    return torch.cat([pack(leaf[rows]).flatten() for leaf in _widest_first(payload)])


def unpack_payload(packed: Tensor, out: Mapping[str, Tensor], rows: slice) -> None:
    """The inverse, into rows of a payload that has room for them."""
    start = 0
    for leaf in _widest_first(out):
        part = leaf[rows]
        size = len(part) * packed_width(part)
        unpack(packed[start : start + size].view(len(part), -1), part)
        start += size


def payload_width(payload: Mapping[str, Tensor]) -> int:
    """Bytes that one agent's message takes."""
    return sum(packed_width(leaf) for leaf in payload.values())


def _widest_first(payload: Mapping[str, Tensor]) -> list[Tensor]:
    """The widest values first: behind a mask of an odd number of bytes they could not be read where they lie."""
    return sorted(payload.values(), key=lambda leaf: -leaf.element_size())


# The exchange between ranks: messages of the agents here are sent to the ranks whose agents receive them, and vice
# versa.


class RankExchange(Exchange):
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
        self.ledger.sent = ranks.broadcast(self.ledger.sent)
        self.liars = liars_of(experiment, simulator.device)
        self._since = 1  # the round in which the links of now began
        self._hear(experiment.mixing)

    def _hear(self, mixing: Mixing) -> None:
        """Compute what to send to which rank, and how received messages are mixed, from the mixing of all agents."""
        everything, device = self.simulator.algorithm.hears_all, self.simulator.device
        hearing = [
            torch.arange(self.agents) if everything else senders_heard(mixing.rows(rows)) for rows in self.shards
        ]
        self.routes = Routes.of(hearing, self.agents, self.ranks.rank)
        self.here, columns = self.routes.here, self.routes.columns
        self.outgoing = {rank: rows.to(device) for rank, rows in self.routes.outgoing.items()}
        own = mixing.rows(self.shards[self.ranks.rank])
        own = own.to(device) if everything else own.restrict(columns).to(device)  # [A, K]
        ends = list(accumulate((len(feed.ids) for feed in self.simulator.feeds), initial=0))
        self.mixings = [own.rows(slice(first, end)) for first, end in pairwise(ends)]
        if self.liars is not None:
            self.links = mixing.links.rows(columns).restrict(columns.numpy()).to(device)  # [K, K]

    def move(self, clock: Clock, shared: Sequence[Payload]) -> tuple[Payload, Sequence[Mixing]]:
        if (since := self.experiment.schedule.since(clock.round)) != self._since:
            self._since = since
            self._hear(self.experiment.mixing_of(since))
        before, behind = self.here.start, len(self.routes.columns) - self.here.stop
        received = join_messages(shared, self.simulator.spread, before, behind)
        if received:
            self._fill(received)
            if self.liars is not None:  # liars look at the true messages first
                received = self.liars.falsify(received, self.links, clock, self.routes.columns.tolist(), self.here)
                self._fill(received)
        self.messages = {name: leaf[self.here] for name, leaf in received.items()}
        return received, self.mixings

    def _fill(self, received: Payload) -> None:
        """Put the messages of other ranks where there is room for them."""
        width = payload_width(received)
        own = {name: leaf[self.here] for name, leaf in received.items()}
        outgoing = {rank: pack_payload(own, rows) for rank, rows in self.outgoing.items()}
        incoming = {rank: (rows.stop - rows.start) * width for rank, rows in self.routes.incoming.items()}
        for rank, packed in self.ranks.all_to_all(outgoing, incoming).items():
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
