"""Local samples: indices of each agent's train, validation and test samples in a dataset.

With the partition `meanings` the dataset changes too: a test of what agreement costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, overload

import numpy as np
import torch
from pydantic import Field

from peermask.data.dataset import Dataset, Split
from peermask.data.partition import BY_LABEL, Indices, apportion, by_labels, partitions, shuffle
from peermask.errors import DataError
from peermask.registry import Options
from peermask.streams import Stream, stream

MEANINGS = "meanings"  # a partition


@dataclass(frozen=True, eq=False)
class LocalSamples:
    """One agent's view: `train` and `validation` index dataset.train, `test` indexes dataset.test."""

    train: Indices
    validation: Indices
    test: Indices
    labels: tuple[int, ...]  # those it trains on; none where samples have no label each
    counts: tuple[int, ...]  # training samples of each of them


class AllSamples(Sequence[LocalSamples]):
    """Every agent's samples. They are drawn when they are first asked for: a process that has some of many agents, or
    only plans, draws no others. What a partition can get wrong is found at once."""

    def __init__(
        self,
        parts: Sequence[Indices],
        dataset: Dataset,
        seed: int,
        fraction: float,
        validation: float,
        *,
        owned: bool = False,  # whether the data says which agent a test sample belongs to
    ) -> None:
        self.parts, self.seed, self.fraction, self.validation = parts, seed, fraction, validation
        self.labels, self.test_labels = labels_of(dataset, dataset.train), labels_of(dataset, dataset.test)
        self.has_labels = dataset.has_labels
        self.owners = dataset.test.agents.numpy() if owned and dataset.test.agents is not None else None  # [n]
        self._drawn: dict[int, LocalSamples] = {}
        self._tests: dict[tuple[int, ...], Indices] = {}  # by labels: agents with the same labels share them
        sizes = np.empty(len(parts), np.int64)
        for agent, part in enumerate(parts):
            if agent and part is parts[agent - 1]:
                sizes[agent] = sizes[agent - 1]
            else:
                sizes[agent] = self._outline(agent).train.sum()
        self.sizes = sizes  # [N] training samples of each agent

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, agent: int) -> LocalSamples: ...
    @overload
    def __getitem__(self, agent: slice) -> tuple[LocalSamples, ...]: ...
    def __getitem__(self, agent: int | slice) -> LocalSamples | tuple[LocalSamples, ...]:
        numbers = range(len(self))[agent]
        if isinstance(numbers, range):
            return tuple(self._of(number) for number in numbers)
        return self._of(numbers)

    def _of(self, agent: int) -> LocalSamples:
        if agent not in self._drawn:
            self._drawn[agent] = self._draw(agent)
        return self._drawn[agent]

    def _draw(self, agent: int) -> LocalSamples:
        """Draw from the agent's own streams, so that its samples depend on no other agent."""
        part, draw, outline = self.parts[agent], stream(self.seed, "local-samples", agent), self._outline(agent)
        by_label = np.split(part[np.argsort(self.labels[part], kind="stable")], np.cumsum(outline.available)[:-1])
        kept = [shuffle(every, draw)[:count] for every, count in zip(by_label, outline.used, strict=True)]
        cut = list(zip(kept, outline.used - outline.train, strict=True))
        own = outline.train_labels
        return LocalSamples(
            train=np.sort(np.concatenate([samples[n:] for samples, n in cut])),
            validation=np.sort(np.concatenate([samples[:n] for samples, n in cut])),
            test=self._test(agent, own),
            labels=own if self.has_labels else (),
            counts=tuple(outline.train[outline.train > 0].tolist()) if self.has_labels else (),
        )

    def _outline(self, agent: int) -> Outline:
        present, held = np.unique(self.labels[self.parts[agent]], return_counts=True)
        kept = np.array([max(1, share_of(int(count), self.fraction)) for count in held])
        outline = Outline(present, held, kept, kept - hold_out(kept, self.validation))
        if not outline.train_labels:
            raise DataError(f"agent {agent} has no training samples: raise data.fraction or use fewer agents")
        if not len(self._test(agent, outline.train_labels)):
            if self.owners is not None:
                raise DataError(f"agent {agent} has no test samples: agent_test has none of its")
            raise DataError(
                f"agent {agent} holds labels {list(outline.train_labels)}, of which the test split has no sample"
            )
        return outline

    def _test(self, agent: int, own: tuple[int, ...]) -> Indices:
        """The agent's own test samples, or every one of these labels."""
        if self.owners is not None:
            return np.flatnonzero(self.owners == agent)
        if own not in self._tests:
            self._tests[own] = np.flatnonzero(np.isin(self.test_labels, own))
        return self._tests[own]


@dataclass(frozen=True, eq=False)
class Outline:
    """How many samples of each label an agent has; which ones is drawn."""

    labels: Indices  # in its part of the partition
    available: Indices  # samples of each in that part
    used: Indices  # of which it uses
    train: Indices  # of which it trains on

    @property
    def train_labels(self) -> tuple[int, ...]:
        """The labels it trains on."""
        return tuple(self.labels[self.train > 0].tolist())


def share_out(
    dataset: Dataset,
    partition: str,
    options: Options,
    agents: int,
    seed: int,
    fraction: float = 1.0,
    validation: float = 0.1,
) -> AllSamples:
    """Share samples out among agents.

    An agent uses `fraction` of its samples of each label, rounded down, at least one. It holds out `validation` of
    them. It is tested on all test samples of its labels, or with the partition `given` on its own. Samples without a
    label count as of one label.
    """
    if agents < 1:
        raise DataError(f"agents is {agents}: at least one agent is needed")
    if not 0 < fraction <= 1:
        raise DataError(f"data.fraction is {fraction}; it must be above 0 and at most 1")
    if not 0 <= validation < 1:
        raise DataError(f"data.validation is {validation}; it must be at least 0 and below 1")
    labels = labels_of(dataset, dataset.train)
    column = _owners(dataset) if partition == "given" else labels
    if partition in BY_LABEL and not dataset.has_labels:
        others = ", ".join(entry.name for entry in partitions if entry.name not in BY_LABEL)
        raise DataError(
            f"partition.name is {partition!r}, which needs labels, and {dataset.task} has none; use one of {others}"
        )
    parts = partitions[partition].make(column, agents, stream(seed, "partition"), **dict(options))
    check_parts(parts, partition, agents, len(labels))
    return AllSamples(parts, dataset, seed, fraction, validation, owned=partition == "given")


def labels_of(dataset: Dataset, split: Split) -> Indices:
    """[n]; all the same where samples have no label."""
    return split.targets.numpy() if dataset.has_labels else np.zeros(len(split), np.int64)


def _owners(dataset: Dataset) -> Indices:
    if dataset.train.agents is None:
        raise DataError(
            f"partition.name is 'given', but {dataset.name} does not say which agent a sample belongs to; "
            "give agent_train (and agent_test), or use another partition"
        )
    return dataset.train.agents.numpy()


def check_parts(parts: object, name: str, agents: int, samples: int) -> None:
    """Check the result of a partition, perhaps one from outside."""
    if not isinstance(parts, Sequence) or len(parts) != agents:
        count = f"{len(parts)} parts" if isinstance(parts, Sequence) else f"a {type(parts).__name__}"
        raise DataError(f"partition {name} gave {count}, not a list of one part for each of {agents} agents")
    for agent, part in enumerate(parts):
        if not isinstance(part, np.ndarray) or part.ndim != 1 or part.dtype.kind not in "ui":
            raise DataError(f"partition {name} gave agent {agent} no array of whole numbers, one for each sample")
        if not len(part):
            raise DataError(f"partition {name} gave agent {agent} no samples; every agent needs at least one")
        if part.min() < 0 or part.max() >= samples:
            raise DataError(f"partition {name} gave agent {agent} samples that are not among the {samples} there are")


def hold_out(counts: Indices, validation: float) -> Indices:
    """Count how many of each label to hold out: in proportion, sparing a label's last sample where possible."""
    total = max(1, share_of(int(counts.sum()), validation))
    if validation == 0 or counts.sum() < 2:
        return np.zeros_like(counts)
    held_out = np.minimum(apportion(total, counts), counts - 1)
    if not held_out.any():
        held_out[counts.argmax()] = 1
    return held_out  # [labels held]


def share_of(count: int, fraction: float) -> int:
    """count * fraction rounded down, where 0.29 of 100 is 29 although the floats say 28.999999999999996."""
    return int(count * fraction + 1e-9)


# Groups of agents that mean different things by the same labels.


@partitions.register(MEANINGS)
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
    parts, groups = share_out(dataset, MEANINGS, options, agents, seed, fraction, 0.0), int(dict(options)["groups"])
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
