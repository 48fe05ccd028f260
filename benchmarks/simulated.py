"""The simulator's side of `cpu_round`: the plain loop's workload, with the bytes counted as in a run."""

from __future__ import annotations

import torch

from benchmarks.plain_loop import AGENTS, BATCH, CHANNELS, FRACTION, HIDDEN, LABELS, PAPER_AGENTS
from peermask.algorithms.contract import Clock
from peermask.config.file import make_config
from peermask.run.assemble import build_simulator
from peermask.run.build import build
from peermask.wire.cost import message_cost
from peermask.wire.receiver_state import ReceiverState


def workload(algorithm: str) -> dict[str, object]:
    return {
        "agents": AGENTS,
        "rounds": 10_000,
        "batch_size": BATCH,
        "retention": 0.3,
        "dataset": "fashion-mnist",
        "partition": {"name": "labels", "labels_per_agent": LABELS},
        "graph": {"name": "erdos-renyi", "p": 0.5},
        "data": {"fraction": FRACTION, "validation": 0.0},
        "model": {"name": "cnn", "channels": list(CHANNELS), "hidden": HIDDEN},
        "algorithm": algorithm,
    }


class Simulated:
    def __init__(self, algorithm: str, paper: bool = False) -> None:
        if paper:
            from benchmarks.round_time import random_images, setting

            experiment = build(setting(PAPER_AGENTS, algorithm), random_images(PAPER_AGENTS))
        else:
            experiment = build(make_config(workload(algorithm)))
        self.simulator = build_simulator(experiment, torch.device("cpu"))
        self.sizes = experiment.network.layout.sizes
        self.number = 0
        self.known: ReceiverState | None = None

    def __enter__(self) -> Simulated:
        self.simulator.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.simulator.__exit__()

    def round(self) -> None:
        self.number += 1
        shared = self.simulator.play(Clock(self.number, 10_000)).shared
        _, self.known = message_cost(shared, self.known, self.sizes, self.simulator.spread)
