"""The loop one would write by hand for many agents on a CPU: what the simulator is compared with.

Of peermask it uses the reader of the dataset, the partition, the graph and the layers of the network, and nothing that
learns, exchanges or counts.
"""

from __future__ import annotations

import copy

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


class PlainLoop:
    """One module and optimiser per agent, averaged over neighbours after every step."""

    def __init__(self) -> None:
        self.dataset = datasets["fashion-mnist"].make()
        by_label = partitions["labels"].options.model_validate({"labels_per_agent": LABELS})
        self.samples = share_out(self.dataset, "labels", by_label, AGENTS, 0, FRACTION, 0.0)
        graph = build_graph("erdos-renyi", topologies["erdos-renyi"].options.model_validate({"p": 0.5}), AGENTS, 0)
        self.neighbours = [[*graph.neighbors(agent), agent] for agent in range(AGENTS)]
        module = cnn(self.dataset.shape, len(self.dataset.classes), channels=CHANNELS, hidden=HIDDEN)
        self.modules = [copy.deepcopy(module) for _ in range(AGENTS)]
        self.optimisers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in self.modules]

    def __enter__(self) -> PlainLoop:
        return self

    def __exit__(self, *_: object) -> None: ...

    def round(self) -> None:
        for own, module, optimiser in zip(self.samples, self.modules, self.optimisers, strict=True):
            picked = torch.from_numpy(own.train)[torch.randperm(len(own.train))[:BATCH]]
            images = self.dataset.normalise(self.dataset.train.inputs[picked])
            optimiser.zero_grad()
            F.cross_entropy(module(images), self.dataset.train.targets[picked]).backward()
            optimiser.step()
        sent = [nn.utils.parameters_to_vector(module.parameters()).detach() for module in self.modules]
        for heard, module in zip(self.neighbours, self.modules, strict=True):
            mean = torch.stack([sent[j] for j in heard]).mean(0)
            nn.utils.vector_to_parameters(mean, module.parameters())


class PaperLoop:
    """The paper's network, without an exchange."""

    def __init__(self) -> None:
        self.modules = [alexnet((3, 32, 32), 10) for _ in range(PAPER_AGENTS)]
        self.optimisers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in self.modules]
        self.images, self.labels = torch.randn(PAPER_BATCH, 3, 32, 32), torch.arange(PAPER_BATCH) % 10

    def __enter__(self) -> PaperLoop:
        return self

    def __exit__(self, *_: object) -> None: ...

    def round(self) -> None:
        for module, optimiser in zip(self.modules, self.optimisers, strict=True):
            optimiser.zero_grad()
            F.cross_entropy(module(self.images), self.labels).backward()
            optimiser.step()
