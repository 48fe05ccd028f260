"""A network small enough for a round to be worked by hand: f(x) = g · x, whose gradient is g wherever x is.

x = [four weights of one layer | one bias]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
import torch
from torch import Tensor

from peermask.algorithms import algorithms
from peermask.algorithms.contract import Agents, Clock, Setting
from peermask.graph.mixing import Mixing, build_mixing
from peermask.graph.topology import Graph
from peermask.masks.masker import Masker, MaskOptions
from peermask.models.layout import Layer, Layout
from peermask.wire.schema import Payload

LAYOUT = Layout(masked=(Layer("conv", "conv", (2, 2), 0, 2),), kept=(Layer("bias", "bias", (1,), 4, 2),))


@dataclass(frozen=True)
class StraightLine:
    """`batch` is the gradient itself."""

    layout: Layout = LAYOUT

    def gradient(self, params: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        return batch, (params * batch).sum(1)


@dataclass(frozen=True)
class Gradients:
    """Local data that is a gradient for every agent, the same in all rounds; further steps have their own."""

    steps: tuple[Tensor, ...]
    accuracy: Tensor | None = None
    asked: list[Tensor] = field(default_factory=list)

    @property
    def sizes(self) -> Tensor:
        return torch.full((len(self.steps[0]),), 9.0)

    def batch(self, clock: Clock, step: int = 0) -> Tensor:  # noqa: ARG002
        return self.steps[min(step, len(self.steps) - 1)]

    def validation_accuracy(self, params: Tensor) -> Tensor:
        self.asked.append(params)
        assert self.accuracy is not None
        return self.accuracy


def rows(*values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def make(name: str, frozen: list[float], options: dict[str, Any] | None = None, **mask: Any) -> Any:
    """An algorithm over the tiny network with these first weights."""
    masker = Masker(LAYOUT, torch.tensor(frozen, dtype=torch.float32), MaskOptions(**mask))
    entry = algorithms[name]
    return entry.make(entry.options.model_validate(options or {}), Setting(StraightLine(), masker, 0, (0.5,)))  # type: ignore[arg-type]


def agents(*keep: int) -> Agents:
    """Agents that may keep so many of the four weights."""
    counts = torch.tensor(keep)[:, None]
    return Agents(tuple(range(len(keep))), counts, counts[:, 0] / 4)


def mixing(count: int, graph: Graph | None = None, shares: list[float] | None = None) -> Mixing:
    """Everybody hears everybody, unless a graph is given."""
    return build_mixing(graph or nx.complete_graph(count), shares or [1.0] * count)


@dataclass(frozen=True)
class Played:
    state: Any
    payload: Payload
    model: Tensor  # [A, P]


def play(algorithm: Any, state: Any, data: Gradients, mixed: Mixing, round: int = 1, rounds: int = 100) -> Played:
    """One round of all agents."""
    clock = Clock(round, rounds)
    learned, _ = algorithm.learn(state, data, clock)
    payload = algorithm.share(learned)
    fused = algorithm.fuse(learned, payload, mixed, clock)
    return Played(fused, payload, algorithm.local_model(fused))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
