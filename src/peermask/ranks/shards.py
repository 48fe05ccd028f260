"""Which agents a rank has, and which messages it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peermask.graph.mixing import Mixing


def shard(agents: int, size: int, rank: int) -> slice:
    """The agents of a rank: in order, and as many as the others have, or one more."""
    return slice(agents * rank // size, agents * (rank + 1) // size)


def heard(mixing: Mixing) -> Tensor:
    """The agents whose messages these receivers hear, themselves included, in order."""
    return torch.from_numpy(mixing.closed.heard[0])  # [K]


@dataclass(frozen=True)
class Routes:
    """What one rank sends to and gets from each other. Messages are in the order of agents, and so are ranks."""

    columns: Tensor  # [K] the senders of the messages that are here after an exchange
    here: slice  # which of these are of the agents here
    outgoing: dict[int, Tensor]  # rank -> which messages of the agents here it hears, counted from the first of them
    incoming: dict[int, slice]  # rank -> which of the K messages come from it

    @classmethod
    def of(cls, hearing: Sequence[Tensor], agents: int, rank: int) -> Routes:
        """From what each rank hears."""
        size, columns = len(hearing), hearing[rank]
        shards = [shard(agents, size, other) for other in range(size)]
        sends = {other: hearing[other][_within(hearing[other], shards[rank])] for other in range(size)}
        comes = {other: _within(columns, shards[other]) for other in range(size)}
        return cls(
            columns,
            comes[rank],
            {other: ids - shards[rank].start for other, ids in sends.items() if other != rank and len(ids)},
            {other: rows for other, rows in comes.items() if other != rank and rows.stop > rows.start},
        )


def _within(ids: Tensor, part: slice) -> slice:
    """Where in ascending ids those of a range are."""
    first, end = torch.searchsorted(ids, torch.tensor([part.start, part.stop])).tolist()
    return slice(first, end)
