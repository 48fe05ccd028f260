"""What `cpu_round` compares: the simulator, and the loop one would write by hand for many agents on a CPU.

Of peermask the hand-written loop uses the reader of the dataset, the partition, the graph and the layers of the
network, and nothing that learns, exchanges or counts. The simulator is imported only where it is measured: each
contender's memory is its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F

from peermask.data import datasets
from peermask.data.local import share_out
from peermask.data.partition import partitions
from peermask.graph import build_graph, topologies
from peermask.models.architectures import alexnet, cnn

AGENTS, BATCH, LABELS, FRACTION, CHANNELS, HIDDEN = 20, 64, 3, 1 / 6, (32, 64), 128
PAPER_AGENTS, PAPER_BATCH = 4, 128

Round = Callable[[], None]


def plain_loop() -> Round:
    """One module and optimiser per agent, averaged over neighbours after every step."""
    dataset = datasets["fashion-mnist"].make()
    by_label = partitions["labels"].options.model_validate({"labels_per_agent": LABELS})
    samples = share_out(dataset, "labels", by_label, AGENTS, 0, FRACTION, 0.0)
    graph = build_graph("erdos-renyi", topologies["erdos-renyi"].options.model_validate({"p": 0.5}), AGENTS, 0)
    neighbours = [[*graph.neighbors(agent), agent] for agent in range(AGENTS)]
    module = cnn(dataset.shape, len(dataset.classes), channels=CHANNELS, hidden=HIDDEN)
    modules = [copy.deepcopy(module) for _ in range(AGENTS)]
    optimisers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in modules]

    def one_round() -> None:
        for own, module, optimiser in zip(samples, modules, optimisers, strict=True):
            picked = torch.from_numpy(own.train)[torch.randperm(len(own.train))[:BATCH]]
            images = dataset.normalise(dataset.train.inputs[picked])
            optimiser.zero_grad()
            F.cross_entropy(module(images), dataset.train.targets[picked]).backward()
            optimiser.step()
        sent = [nn.utils.parameters_to_vector(module.parameters()).detach() for module in modules]
        for heard, module in zip(neighbours, modules, strict=True):
            mean = torch.stack([sent[j] for j in heard]).mean(0)
            nn.utils.vector_to_parameters(mean, module.parameters())

    return one_round


def paper_loop() -> Round:
    """The paper's network, without an exchange."""
    modules = [alexnet((3, 32, 32), 10) for _ in range(PAPER_AGENTS)]
    optimisers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in modules]
    images, labels = torch.randn(PAPER_BATCH, 3, 32, 32), torch.arange(PAPER_BATCH) % 10

    def one_round() -> None:
        for module, optimiser in zip(modules, optimisers, strict=True):
            optimiser.zero_grad()
            F.cross_entropy(module(images), labels).backward()
            optimiser.step()

    return one_round


@contextmanager
def simulated(algorithm: str, *, paper: bool) -> Iterator[Round]:
    """The same workload by the simulator, with the bytes counted as in a run."""
    from benchmarks.round_time import random_images, setting
    from peermask.algorithms.contract import Clock
    from peermask.config.file import make_config
    from peermask.run.assemble import build_simulator
    from peermask.run.build import build
    from peermask.wire.cost import message_cost
    from peermask.wire.receiver_state import ReceiverState

    if paper:
        experiment = build(setting(PAPER_AGENTS, algorithm), random_images(PAPER_AGENTS))
    else:
        experiment = build(make_config(workload(algorithm)))
    sizes, number = experiment.network.layout.sizes, 0
    known: ReceiverState | None = None
    with build_simulator(experiment, torch.device("cpu")) as simulator:

        def one_round() -> None:
            nonlocal number, known
            number += 1
            shared = simulator.play(Clock(number, 10_000)).shared
            _, known = message_cost(shared, known, sizes, simulator.spread)

        yield one_round


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
