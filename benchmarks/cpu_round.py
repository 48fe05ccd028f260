"""A round on a CPU against the loop one would write by hand, in one process: `python -m benchmarks.cpu_round`.

The workload: Fashion-MNIST, 20 agents with 500 images of 3 labels each, a network of two 5x5 convolutions and two
linear layers, one batch of 64 per agent and round, then one exchange over a random graph with p = 0.5. Nothing is
evaluated. The contenders take turns, so that a busy machine slows all of them alike. Prints and asserts nothing.
"""

from __future__ import annotations

import argparse
import copy
import resource
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from peermask.algorithms.contract import Clock
from peermask.engine.simulator import Simulator
from peermask.engine.traffic import message_cost
from peermask.experiment.build import Experiment, build, build_simulator
from peermask.experiment.config import make_config

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3, help="rounds in a turn")
    options = parser.parse_args()
    begun = time.perf_counter()
    experiments = {name: build(make_config(workload(name))) for name in ("mce-pl", "dsgd")}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; data and graph: {since(begun):.1f} s")
    plain = PlainLoop(experiments["dsgd"])
    turns: dict[str, Callable[[], None]] = {"plain loop": plain.round}
    simulators = {name: build_simulator(experiment, CPU) for name, experiment in experiments.items()}
    for name, simulator in simulators.items():
        turns[name] = Played(simulator, experiments[name]).round
    spans: dict[str, list[float]] = {name: [] for name in turns}
    for turn in range(options.turns + 1):
        for name, one_round in turns.items():
            with simulators.get(name) or plain:
                started = time.perf_counter()
                for _ in range(options.rounds):
                    one_round()
                if turn:  # the first is a warm-up
                    spans[name].append(since(started) / options.rounds)
    base = statistics.median(spans["plain loop"])
    for name, taken in spans.items():
        median = statistics.median(taken)
        ratios = [own / other for own, other in zip(taken, spans["plain loop"], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name:12s}{median:8.3f} s a round   {median / base:.2f} x the plain loop ({spread} by turn)")
    print(f"memory of all three together: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


def workload(algorithm: str) -> dict[str, object]:
    return {
        "agents": 20,
        "rounds": 10_000,
        "batch_size": 64,
        "retention": 0.3,
        "dataset": "fashion-mnist",
        "data": {"fraction": 1 / 6, "validation": 0.0},
        "model": {"name": "cnn", "channels": [32, 64], "hidden": 128},
        "algorithm": algorithm,
    }


class Played:
    """A round of the simulator, its bytes counted as in a run."""

    def __init__(self, simulator: Simulator, experiment: Experiment) -> None:
        self.simulator, self.sizes = simulator, experiment.network.layout.sizes
        self.number = 0
        self.before: dict[str, torch.Tensor] | None = None

    def round(self) -> None:
        self.number += 1
        shared = self.simulator.play(Clock(self.number, 10_000)).shared
        message_cost(shared, self.before, self.sizes, self.simulator.spread)
        self.before = shared


class PlainLoop:
    """One module and optimiser per agent, averaged over neighbours after every step."""

    def __init__(self, experiment: Experiment) -> None:
        self.dataset, self.samples = experiment.dataset, experiment.samples
        self.neighbours = [[*experiment.graph.neighbors(agent), agent] for agent in range(20)]
        self.modules = [copy.deepcopy(experiment.network.module).requires_grad_().train() for _ in range(20)]
        self.optimisers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in self.modules]

    def __enter__(self) -> PlainLoop:
        return self

    def __exit__(self, *_: object) -> None: ...

    def round(self) -> None:
        for own, module, optimiser in zip(self.samples, self.modules, self.optimisers, strict=True):
            picked = torch.from_numpy(own.train)[torch.randperm(len(own.train))[:64]]
            images = self.dataset.normalise(self.dataset.train.images[picked])
            optimiser.zero_grad()
            F.cross_entropy(module(images), self.dataset.train.labels[picked]).backward()
            optimiser.step()
        sent = [nn.utils.parameters_to_vector(module.parameters()).detach() for module in self.modules]
        for heard, module in zip(self.neighbours, self.modules, strict=True):
            mean = torch.stack([sent[j] for j in heard]).mean(0)
            nn.utils.vector_to_parameters(mean, module.parameters())


def since(begun: float) -> float:
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
