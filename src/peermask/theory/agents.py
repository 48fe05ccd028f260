"""Two agents' data: different labels of the embedded digits, some of them shared, no image in common."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from peermask.data.dataset import Dataset, Split
from peermask.data.normalisation import Range
from peermask.errors import ConfigError, DataError
from peermask.theory.training import Examples

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
