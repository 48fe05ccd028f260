"""Groups of agents that mean different things by the same labels: a test of what agreement costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from peermask.data.dataset import Dataset, Split
from peermask.data.local import AllSamples, share_out
from peermask.data.partition import Indices, by_labels, partitions
from peermask.errors import DataError
from peermask.registry import Options
from peermask.streams import Stream

NAME = "meanings"


@partitions.register(NAME)
def meanings(
    labels: Indices,
    agents: int,
    draw: Stream,
    *,
    labels_per_agent: Annotated[int, Field(ge=1, description="labels each agent holds")] = 3,
    groups: Annotated[
        int, Field(ge=1, description="groups of agents, each with numbers of its own for the labels")
    ] = 2,
) -> list[Indices]:
    """As `labels`, but the second group of agents calls every label by the next number, the third by the one after."""
    if groups > min(agents, len(np.unique(labels))):
        raise DataError(f"partition.groups is {groups}; it can be at most the number of agents, and of labels")
    return by_labels(labels, agents, draw, labels_per_agent=labels_per_agent)


def share_meanings(
    dataset: Dataset, options: Options, agents: int, seed: int, fraction: float, validation: float
) -> tuple[Dataset, AllSamples]:
    """Every agent's samples, and a dataset in which each has its own copies with the labels as its group means them."""
    parts, groups = share_out(dataset, NAME, options, agents, seed, fraction, 0.0), int(dict(options)["groups"])
    shifts = [agent * groups // agents for agent in range(agents)]
    train = _renamed(dataset.train, [part.train for part in parts], shifts, len(dataset.classes))
    test = _renamed(dataset.test, [part.test for part in parts], shifts, len(dataset.classes))
    renamed = replace(dataset, name=f"{dataset.name}, {groups} meanings", train=train, test=test)
    assert train.agents is not None
    owners = train.agents.numpy()
    own = [np.flatnonzero(owners == agent) for agent in range(agents)]
    return renamed, AllSamples(own, renamed, seed, 1.0, validation, owned=True)


def _renamed(split: Split, parts: list[Indices], shifts: list[int], classes: int) -> Split:
    index = torch.from_numpy(np.concatenate(parts))
    sizes = torch.tensor([len(part) for part in parts])
    owner = torch.repeat_interleave(torch.arange(len(parts)), sizes)  # [n]
    return Split(split.inputs[index], (split.targets[index] + torch.tensor(shifts)[owner]) % classes, owner)
