"""The exchange of the simulator: all agents are in this process, so nothing moves."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from peermask.algorithms.contract import Clock, Payload
from peermask.engine.simulator import Simulator
from peermask.experiment.build import Experiment
from peermask.experiment.counting import Counting, liars_of
from peermask.experiment.folder import RunFolder
from peermask.experiment.metrics import Ledger
from peermask.graph.mixing import Mixing


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
