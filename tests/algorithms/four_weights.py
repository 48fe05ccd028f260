"""A layer of four weights and a loss with a fixed gradient: small enough for a round of masks to be worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.compute.network import Batch
from peermask.graph.links import Links
from peermask.graph.mixing import Mixing
from peermask.models.layout import Layer, Layout

LAYOUT = Layout((Layer("w", "conv", (2, 2), 0, 2),), ())
FROZEN = torch.tensor([1.0, -1.0, 2.0, -2.0])
SCORES = torch.tensor([[0.4, -0.3, 0.2, -0.1]])
KEEP = torch.tensor([[2]])


class FixedGradient:
    """A network whose loss has the same gradient whatever the model."""

    layout = LAYOUT

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def gradient(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        self.seen.append(params)
        return torch.tensor([[0.1, 0.2, -0.1, 0.05]]), torch.tensor([1.0])


class NoData:
    sizes = torch.tensor([9.0])

    def batch(self, clock: Clock, step: int = 0) -> Batch:  # noqa: ARG002
        return Batch(torch.zeros(1, 5, 1), torch.zeros(1, 5, dtype=torch.int64))

    def validation_accuracy(self, params: Tensor) -> Any: ...


def hear(*masks: list[int]) -> tuple[dict[str, Tensor], Mixing]:
    """The agent's own message in column 0, its neighbours' in the others."""
    received = torch.tensor([[0, 0, 0, 0], *masks], dtype=torch.bool)
    links = torch.tensor([[False] + [True] * len(masks)])
    everyone = Links.of(torch.ones_like(links))
    return {"mask": received}, Mixing(Links.of(links), everyone, np.array([0]), torch.ones(len(received)))


def close(tensor: Tensor | None, expected: list[float]) -> bool:
    assert tensor is not None
    return torch.allclose(tensor[0], torch.tensor(expected), atol=1e-6)
