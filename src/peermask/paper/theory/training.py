"""Two agents' data, and the training of their targets."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from peermask.data.dataset import Dataset, Split
from peermask.data.normalisation import Range
from peermask.errors import ConfigError, DataError, DivergedError, ModelError
from peermask.paper.theory.networks import Layers, Target, forward, outputs, require_unit_inputs
from peermask.streams import stream

# Each layer is v_l = u_l / max(1, ‖u_l‖_1) with u_l free, so every step stays in F. The theorem's outputs are
# whole maps [O_L, D, D]; an agent reads label o off as the largest entry of channel o, and its loss is the
# cross-entropy of those readings times `SHARPNESS`. Neither the reading nor the factor is part of f.

SHARPNESS = 300.0
STEP_SIZE = 0.01


@dataclass(frozen=True)
class Examples:
    images: Tensor  # [n, C, D, D], float64 in [0, 1]
    labels: Tensor  # [n], the output channel that should be largest


def initial(channels: tuple[int, ...], side: int, seed: int) -> Layers:
    """f_0: uniform weights, each layer scaled to l1 norm 1. `channels` is (O_0, ..., O_L)."""
    if len(channels) < 2 or min(channels) < 1 or side < 1 or side % 2 == 0:
        raise ModelError(f"channels {channels}, kernel {side}: at least two counts and an odd kernel are needed")
    layers: list[Tensor] = []
    for number, (ins, outs) in enumerate(pairwise(channels)):
        draw = stream(seed, "theory/f0", step=number).uniform(outs * ins * side * side)
        weight = torch.from_numpy(2.0 * draw - 1.0).reshape(outs, ins, side, side)
        layers.append(weight / weight.abs().sum())
    return tuple(layers)


def train(start: Layers, examples: Examples, steps: int) -> Target:
    """Adam on all of an agent's examples at once, from `start`."""
    images = require_unit_inputs(examples.images, start[0].shape[1])
    free = [weight.clone().requires_grad_() for weight in start]
    optimizer = torch.optim.Adam(free, lr=STEP_SIZE)
    for step in range(steps):
        optimizer.zero_grad()
        readings = read(forward(_in_class(free), images))
        loss = functional.cross_entropy(SHARPNESS * readings, examples.labels)
        if not bool(torch.isfinite(loss)):
            raise DivergedError(
                f"the loss of the target is NaN or infinite ({float(loss)}) at step {step + 1}; lower the step size"
            )
        loss.backward()
        optimizer.step()
    return Target(tuple(weight.detach() for weight in _in_class(free)))


def read(maps: Tensor) -> Tensor:
    """The agents' reading of an output: the largest entry of each channel, [B, O, D, D] -> [B, O]."""
    return maps.amax((2, 3))


def accuracy(layers: Layers, examples: Examples) -> float:
    guess = read(outputs(layers, examples.images)).argmax(1)
    return float((guess == examples.labels).double().mean())


def _in_class(free: list[Tensor]) -> Layers:
    return tuple(weight / weight.abs().sum().clamp(min=1.0) for weight in free)


LABELS_EACH = 3
CLASSES = 2 * LABELS_EACH  # output channels O_L: enough for two agents with nothing in common


@dataclass(frozen=True)
class AgentData:
    labels: tuple[int, ...]
    train: Examples
    test: Examples


def two_agents(dataset: Dataset, shared: int) -> tuple[AgentData, AgentData]:
    """Agent 1 has labels 0, 1, 2; agent 2 has three labels of which `shared` are agent 1's.

    Training images of a shared label are dealt alternately, so that even two agents with the same labels have
    learned from different images. Test images are those of an agent's labels.
    """
    if not 0 <= shared <= LABELS_EACH:
        raise ConfigError(f"shared is {shared}; it must be from 0 to {LABELS_EACH}, the labels of one agent")
    if len(dataset.classes) < CLASSES:
        raise DataError(f"{dataset.name} has {len(dataset.classes)} classes; two agents need {CLASSES}")
    if not isinstance(dataset.normalisation, Range) or dataset.normalisation.low:
        raise DataError(f"{dataset.name} has no fixed range from 0, which the theorem needs")
    train, test = (_unit(split, dataset.normalisation.high) for split in (dataset.train, dataset.test))
    first = tuple(range(LABELS_EACH))
    second = tuple(range(LABELS_EACH - shared, 2 * LABELS_EACH - shared))
    return (
        AgentData(first, _deal(train, first, second, turn=0), _only(test, first)),
        AgentData(second, _deal(train, second, first, turn=1), _only(test, second)),
    )


def all_images(agents: tuple[AgentData, AgentData]) -> Tensor:
    """The 𝒳 of the theorem: every image either agent has, for training or testing."""
    sets = [part.images for agent in agents for part in (agent.train, agent.test)]
    images: Tensor = torch.unique(torch.cat(sets), dim=0)
    return images  # [n, C, D, D]


def _unit(split: Split, peak: float) -> Examples:
    return Examples(split.inputs.double() / peak, split.targets)


def _only(examples: Examples, labels: tuple[int, ...]) -> Examples:
    keep = torch.isin(examples.labels, torch.tensor(labels))
    return Examples(examples.images[keep], examples.labels[keep])


def _deal(examples: Examples, mine: tuple[int, ...], other: tuple[int, ...], turn: int) -> Examples:
    keep = torch.zeros_like(examples.labels, dtype=torch.bool)
    for label in mine:
        rows = (examples.labels == label).nonzero()[:, 0]
        keep[rows[turn::2] if label in other else rows] = True
    return Examples(examples.images[keep], examples.labels[keep])
