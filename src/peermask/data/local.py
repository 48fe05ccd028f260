"""What each agent holds of a dataset: indices of its own train, validation and test samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from peermask.data.apportion import apportion
from peermask.data.dataset import Dataset
from peermask.data.partition import Indices, partitions, shuffled
from peermask.errors import DataError
from peermask.registry import Options
from peermask.streams import stream


@dataclass(frozen=True, eq=False)
class LocalSamples:
    """One agent's view: `train` and `validation` index dataset.train, `test` indexes dataset.test."""

    train: Indices
    validation: Indices
    test: Indices
    labels: tuple[int, ...]  # those it trains on
    counts: tuple[int, ...]  # training samples of each of them


def share_out(
    dataset: Dataset,
    partition: str,
    options: Options,
    agents: int,
    seed: int,
    fraction: float = 1.0,
    validation: float = 0.1,
) -> tuple[LocalSamples, ...]:
    """Every agent's samples. `fraction` of each of its label counts is kept, rounded down, one at least; of
    that, `validation` is held out; its test set is every test sample of its labels."""
    if agents < 1:
        raise DataError(f"agents is {agents}: samples need at least one agent to hold them")
    if not 0 < fraction <= 1:
        raise DataError(f"data.fraction is {fraction}; it must be above 0 and at most 1")
    if not 0 <= validation < 1:
        raise DataError(f"data.validation is {validation}; it must be at least 0 and below 1")
    labels, test_labels = dataset.train.labels.numpy(), dataset.test.labels.numpy()
    parts = partitions[partition].make(labels, agents, stream(seed, "partition"), **dict(options))
    check_parts(parts, partition, agents, len(labels))
    return tuple(
        local_samples(part, labels, test_labels, i, seed, fraction, validation) for i, part in enumerate(parts)
    )


def check_parts(parts: object, name: str, agents: int, samples: int) -> None:
    """That a partition, perhaps one from outside, gave what a partition gives."""
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


def local_samples(
    part: Indices,
    labels: Indices,
    test_labels: Indices,
    agent: int,
    seed: int,
    fraction: float,
    validation: float,
) -> LocalSamples:
    """One agent's samples; drawn from its own streams, so they depend on no other agent."""
    draw = stream(seed, "local-samples", agent)
    by_label = [shuffled(part[labels[part] == label], draw) for label in np.unique(labels[part])]
    kept = [samples[: max(1, share_of(len(samples), fraction))] for samples in by_label]
    held_out = hold_out(np.array([len(samples) for samples in kept]), validation)
    train = np.sort(np.concatenate([samples[n:] for samples, n in zip(kept, held_out, strict=True)]))
    if not len(train):
        raise DataError(f"agent {agent} has no training samples: raise data.fraction or use fewer agents")
    own, counts = np.unique(labels[train], return_counts=True)
    test = np.flatnonzero(np.isin(test_labels, own))
    if not len(test):
        raise DataError(f"agent {agent} holds labels {own.tolist()}, of which the test split has no sample")
    return LocalSamples(
        train=train,
        validation=np.sort(np.concatenate([samples[:n] for samples, n in zip(kept, held_out, strict=True)])),
        test=test,
        labels=tuple(own.tolist()),
        counts=tuple(counts.tolist()),
    )


def hold_out(counts: Indices, validation: float) -> Indices:
    """How many of each label to hold out: in proportion, sparing a label's last sample where possible."""
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
