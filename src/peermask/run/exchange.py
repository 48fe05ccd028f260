"""Exchange: interface between a run and its environment; and the simulator's, where nothing moves.

One loop of rounds (`run/loop.py`) works with any of them:

    LocalExchange         run/exchange.py               all agents are here; bytes are what the codec would send
    AsynchronousExchange  run/asynchronous_exchange.py  the same, each agent in its own round
    RankExchange          run/rank_exchange.py          some agents are here, the others in other processes of the run
    NodeExchange          fleet/exchange.py             one agent is here; bytes are what was actually sent
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.algorithms.liars import Liars
from peermask.compute.device import rows_on_cpu
from peermask.graph.mixing import Mixing
from peermask.run.build import Experiment
from peermask.run.ledger import Ledger
from peermask.run.simulator import Simulator
from peermask.store.folder import RunFolder
from peermask.wire.schema import Payload


class Abandoned(Exception):
    """Error of an exchange that was stopped while it waited for others: the round is not played."""


class Exchange:
    """Exchange of the A agents in this process; N agents' rows are written together, all agents' or only these.

    This base is that of the simulations: it counts what the messages of the agents here cost. Agents elsewhere, if
    there are any, are `all_gather`'s and `gather`'s. A node overrides nearly all of it.
    """

    def __init__(self, simulator: Simulator, ledger: Ledger) -> None:
        self.simulator, self.ledger = simulator, ledger
        self.messages: Payload = {}  # the last of the agents here [A, ...]; empty before the first

    def proceed(self, round: int) -> int:
        """The round to play after `round`, of which everything is done: the next, or one that the others reached."""
        return round + 1

    def play(self, simulator: Simulator, clock: Clock) -> Tensor:
        """Play a round of the agents here with the messages of others; return their losses [A]."""
        return simulator.play(clock, self.move).losses

    def move(self, clock: Clock, shared: Sequence[Payload]) -> tuple[Payload, Sequence[Mixing]]:
        """Move the messages of a round, as a `Move` of the simulator."""
        raise NotImplementedError

    def count(self, round: int) -> None:
        """Note what the messages of a round cost. No round waits for a device here."""
        self.ledger.record(round, self.messages, self.simulator.spread)

    def sent_bytes(self) -> Tensor:
        """Bytes sent so far over all links, [N] float64 on the CPU."""
        self.ledger.flush()
        return self.ledger.sent

    def flush(self) -> None:
        """Write the rows of traffic.csv that are complete."""
        self.ledger.flush()

    def state(self) -> Payload:
        """State of messages that a resumed run needs, on the CPU, as part of a checkpoint."""
        return {name: self.gather(rows_on_cpu([leaf])) for name, leaf in (self.ledger.before or {}).items()}

    def all_gather(self, rows: Tensor) -> Tensor:
        """All-gather [A, ...] of the agents here to [N, ...]; for a few numbers each."""
        return rows

    def gather(self, rows: Tensor) -> Tensor:
        """Gather [A, ...] on the CPU to [N, ...] in the process that writes the run; others ignore the result."""
        return rows

    def conclude(self, save: Callable[[], None]) -> None:
        """Save the last round, and stay for neighbours that still need its messages; here nobody does."""


class LocalExchange(Exchange):
    """`Exchange` of all agents in one process: A = K = N, and a message costs what the codec would send."""

    def __init__(self, experiment: Experiment, folder: RunFolder, simulator: Simulator, sent: Payload) -> None:
        super().__init__(simulator, Ledger(experiment, folder, sent or None))
        self.experiment, self.liars = experiment, liars_of(experiment, simulator.device)

    def move(self, clock: Clock, shared: Sequence[Payload]) -> tuple[Payload, Sequence[Mixing]]:
        honest, mixings = self.simulator.concatenate(clock, shared)
        self.messages = honest
        if self.liars is not None:
            links = self.experiment.schedule.links(clock.round).to(self.simulator.device)
            self.messages = self.liars.falsify(honest, links, clock)
        return self.messages, mixings


def liars_of(experiment: Experiment, device: torch.device) -> Liars | None:
    """The agents that send lies; None if all are honest."""
    options = experiment.config.liars
    if options is None or not experiment.liars:
        return None
    return Liars(options.kind, experiment.liars, experiment.network.layout.sizes, experiment.config.seed, device)
