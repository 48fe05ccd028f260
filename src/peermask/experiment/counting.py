"""What the exchanges of a simulation have in common: which agents lie, and what the messages of the agents here
cost."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from peermask.algorithms.contract import Payload
from peermask.engine.device import rows_on_cpu
from peermask.engine.liars import Liars
from peermask.engine.simulator import Simulator
from peermask.experiment.build import Experiment
from peermask.experiment.metrics import Ledger


class Counting:
    """The part of an `Exchange` that counts; agents elsewhere, if there are any, are `everyone`'s and `collect`'s."""

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
        return {name: self.collect(rows_on_cpu([leaf])) for name, leaf in (self.ledger.before or {}).items()}

    def everyone(self, rows: Tensor) -> Tensor:
        return rows

    def collect(self, rows: Tensor) -> Tensor:
        return rows

    def conclude(self, save: Callable[[], None]) -> None:
        """All agents are at the same round."""


def liars_of(experiment: Experiment, device: torch.device) -> Liars | None:
    """The agents that send lies; None if all are honest."""
    options = experiment.config.liars
    if options is None or not experiment.liars:
        return None
    return Liars(options.kind, experiment.liars, experiment.network.layout.sizes, experiment.config.seed, device)
