"""The exchange of the simulator: all agents are in this process, so nothing moves, and messages are only counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock, Payload
from peermask.engine.device import rows_on_cpu
from peermask.engine.liars import Liars
from peermask.engine.simulator import Simulator
from peermask.experiment.build import Experiment
from peermask.experiment.folder import RunFolder
from peermask.experiment.metrics import Ledger
from peermask.graph.mixing import Mixing


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


class Concatenation(Counting):
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
