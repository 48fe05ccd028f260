"""The exchange of the simulator: all agents are in this process, so nothing moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from peermask.algorithms.contract import Clock, Payload
from peermask.engine.device import rows_on_cpu
from peermask.engine.liars import Liars
from peermask.engine.simulator import Simulator
from peermask.experiment.build import Experiment
from peermask.experiment.folder import RunFolder
from peermask.experiment.metrics import Ledger
from peermask.graph.mixing import Mixing


class Concatenation:
    """An `Exchange`: A = K = N, and a message costs what the codec would send."""

    def __init__(self, experiment: Experiment, folder: RunFolder, simulator: Simulator, sent: Payload) -> None:
        self.simulator = simulator
        self.ledger = Ledger(experiment, folder, sent or None)
        self.messages: Payload = {}
        self.experiment = experiment
        self.liars: Liars | None = None
        if experiment.liars and (options := experiment.config.liars):
            sizes, seed = experiment.network.layout.sizes, experiment.config.seed
            self.liars = Liars(options.kind, experiment.liars, sizes, seed, simulator.device)

    def proceed(self, round: int) -> int:
        return round + 1

    def move(self, clock: Clock, shared: Sequence[Payload]) -> tuple[Payload, Sequence[Mixing]]:
        honest, mixings = self.simulator.concatenate(clock, shared)
        self.messages = honest
        if self.liars is not None:
            links = self.experiment.schedule.links(clock.round).to(self.simulator.device)
            self.messages = self.liars.told(honest, links, clock)
        return self.messages, mixings

    def count(self, round: int) -> None:
        self.ledger.record(round, self.messages, self.simulator.spread)

    def sent_bytes(self) -> Tensor:
        self.ledger.flush()
        return self.ledger.sent

    def flush(self) -> None:
        self.ledger.flush()

    def state(self) -> Payload:
        return {name: rows_on_cpu([leaf]) for name, leaf in (self.ledger.before or {}).items()}

    def everyone(self, rows: Tensor) -> Tensor:
        return rows

    def collect(self, rows: Tensor) -> Tensor:
        return rows

    def conclude(self, save: Callable[[], None]) -> None:
        """Nobody else is there."""
