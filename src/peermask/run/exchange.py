"""The exchange: the interface between a run and its environment, and the simulator's, where nothing moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.algorithms.liars import Liars
from peermask.compute.device import rows_on_cpu
from peermask.graph.mixing import Mixing
from peermask.run.build import Experiment
from peermask.run.metrics import Ledger
from peermask.run.simulator import Simulator
from peermask.store.folder import RunFolder
from peermask.wire.schema import Payload

# The interface between a run and its environment: how the agents of this process receive messages of all others.
#
# One loop of rounds (`run/loop.py`) is given an exchange and does not know which:
#
#     LocalExchange   run/exchange.py   all agents are here; bytes are what the codec would send
#     AsynchronousExchange  run/asynchronous_exchange.py  the same, each agent in its own round
#     Ranked          run/rank_exchange.py          some agents are here, the others in other processes of the run
#     NodeExchange    fleet/exchange.py              one agent is here; bytes are what was actually sent


class Abandoned(Exception):
    """Raised by an exchange that was stopped while it waited for others: the round is not played."""


class Exchange(Protocol):
    """Of A agents in this process, whose rows are written with those of N: of all agents, or only of its own."""

    @property
    def messages(self) -> Payload:
        """What the agents here sent last [A, ...]; empty where nothing was."""
        ...

    def proceed(self, round: int) -> int:
        """The round to play after `round`, of which everything is done: the next, or one that the others reached."""
        ...

    def play(self, simulator: Simulator, clock: Clock) -> Tensor:
        """A round of the agents here, with what came from the others; their losses [A]."""
        ...

    def count(self, round: int) -> None:
        """Note what the messages of a round cost. No round waits for a device here."""
        ...

    def sent_bytes(self) -> Tensor:
        """[N] float64 on the CPU: so far, over all links."""
        ...

    def flush(self) -> None:
        """Write the rows of traffic.csv that are known by now."""
        ...

    def state(self) -> Payload:
        """What a resumed run must know of messages, on the CPU; it is part of a checkpoint."""
        ...

    def all_gather(self, rows: Tensor) -> Tensor:
        """[A, ...] of the agents here -> [N, ...] of all whose rows are written together; for a few numbers each."""
        ...

    def gather(self, rows: Tensor) -> Tensor:
        """[A, ...] on the CPU -> [N, ...] in the process that writes the run; elsewhere it is not used."""
        ...

    def conclude(self, save: Callable[[], None]) -> None:
        """After the last round: save it, and stay for neighbours that still need its messages."""
        ...


# The exchange of the simulator: all agents are in this process, so nothing moves, and messages are only counted.


class Counting:
    """What the exchanges of all simulations have in common: they count what the messages of the agents here cost.

    Agents elsewhere, if there are any, are `all_gather`'s and `gather`'s."""

    def __init__(self, simulator: Simulator, ledger: Ledger) -> None:
        self.simulator, self.ledger = simulator, ledger
        self.messages: Payload = {}  # of the agents here, in the last round

    def proceed(self, round: int) -> int:
        return round + 1

    def count(self, round: int) -> None:
        self.ledger.record(round, self.messages, self.simulator.spread)

    def sent_bytes(self) -> Tensor:
        self.ledger.flush()
        return self.ledger.sent

    def flush(self) -> None:
        self.ledger.flush()

    def state(self) -> Payload:
        return {name: self.gather(rows_on_cpu([leaf])) for name, leaf in (self.ledger.before or {}).items()}

    def all_gather(self, rows: Tensor) -> Tensor:
        return rows

    def gather(self, rows: Tensor) -> Tensor:
        return rows

    def conclude(self, save: Callable[[], None]) -> None:
        """All agents are at the same round."""


class LocalExchange(Counting):
    """An `Exchange`: A = K = N, and a message costs what the codec would send."""

    def __init__(self, experiment: Experiment, folder: RunFolder, simulator: Simulator, sent: Payload) -> None:
        super().__init__(simulator, Ledger(experiment, folder, sent or None))
        self.experiment, self.liars = experiment, liars_of(experiment, simulator.device)

    def play(self, simulator: Simulator, clock: Clock) -> Tensor:
        return simulator.play(clock, self.move).losses

    def move(self, clock: Clock, shared: Sequence[Payload]) -> tuple[Payload, Sequence[Mixing]]:
        honest, mixings = self.simulator.concatenate(clock, shared)
        self.messages = honest
        if self.liars is not None:
            links = self.experiment.schedule.links(clock.round).to(self.simulator.device)
            self.messages = self.liars.told(honest, links, clock)
        return self.messages, mixings


def liars_of(experiment: Experiment, device: torch.device) -> Liars | None:
    """The agents that send lies; None if all are honest."""
    options = experiment.config.liars
    if options is None or not experiment.liars:
        return None
    return Liars(options.kind, experiment.liars, experiment.network.layout.sizes, experiment.config.seed, device)
