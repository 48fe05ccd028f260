"""Summary of the data before a run: samples of every agent, duplicates, ranges, and classes that nobody has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peermask.config.experiment import ExperimentConfig
from peermask.config.file import as_config
from peermask.data.dataset import Dataset, Task
from peermask.data.local import LocalSamples
from peermask.run.build import check_given, share_data

LARGEST_BYTES = 2**26  # of inputs, and training samples of all agents, that are searched for duplicates before a run
LARGEST_SAMPLES = 10**6


@dataclass(frozen=True)
class DataSummary:
    """Summary of a dataset, and of its division among agents.

    Attributes:
        name: The dataset's.
        task: "classification", "multi-label" or "regression".
        shape: Of one input.
        classes: Names of labels or outputs.
        train: Training samples of each agent.
        validation: Held-out samples of each agent.
        test: Test samples of each agent.
        histograms: [agents][classes]: training samples of each label; empty for a regression.
        shared: Different inputs that more than one agent trains on.
        leaked: Test samples whose input is also trained on, by any agent.
        ranges: Lowest and highest value of each feature or channel in the training data; of tokens one pair.
        constant: Features or channels that have one value only.
        missing: Classes that no agent trains on.

    Examples:
        >>> import peermask
        >>> seen = peermask.describe_data({"agents": 4, "partition": {"name": "labels", "labels_per_agent": 2}})
        >>> seen.name, len(seen.train), seen.shared
        ('digits', 4, 0)
    """

    name: str
    task: Task
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]
    histograms: tuple[tuple[int, ...], ...]
    shared: int
    leaked: int
    ranges: tuple[tuple[float, float], ...]
    constant: tuple[int, ...]
    missing: tuple[str, ...]


def describe_data(
    config: ExperimentConfig | Mapping[str, Any] | Path | str, *, dataset: Dataset | None = None
) -> DataSummary:
    """Describe the data of a config as its agents would have it. Nothing is learned or written.

    Args:
        config: A config, plain values as for `make_config`, or the path of a config file.
        dataset: Data of your own instead of the config's, as for `run_experiment`.

    Returns:
        Samples and labels of every agent, duplicates, ranges, and classes that nobody has.

    Raises:
        PeermaskError: A mistake in the config or the data, as a run would report it.

    Examples:
        >>> import peermask
        >>> seen = peermask.describe_data({"agents": 1, "partition": {"name": "labels", "labels_per_agent": 8}})
        >>> len(seen.missing)
        2
    """
    check_given(dataset, None)
    data, samples = share_data(as_config(config), dataset)
    return summarise(data, samples)


def summarise(data: Dataset, samples: Sequence[LocalSamples]) -> DataSummary:
    """Summarise what agents have of a dataset."""
    histograms = () if data.task == "regression" else tuple(_histogram(data, own) for own in samples)
    total = np.sum(histograms, axis=0) if histograms else np.ones(len(data.classes))  # [classes]
    ranges = _ranges(data.train.inputs[_trained(samples)])
    shared, leaked = count_duplicates(data, samples)
    return DataSummary(
        name=data.name,
        task=data.task,
        shape=data.shape,
        classes=data.classes,
        train=tuple(len(own.train) for own in samples),
        validation=tuple(len(own.validation) for own in samples),
        test=tuple(len(own.test) for own in samples),
        histograms=histograms,
        shared=shared,
        leaked=leaked,
        ranges=ranges,
        constant=tuple(place for place, (low, high) in enumerate(ranges) if low == high),
        missing=tuple(name for name, count in zip(data.classes, total, strict=True) if not count),
    )


def _histogram(data: Dataset, own: LocalSamples) -> tuple[int, ...]:
    targets = data.train.targets[own.train]
    if data.has_labels:
        return tuple(np.bincount(targets.numpy(), minlength=len(data.classes)).tolist())
    return tuple(int(count) for count in targets.sum(0).tolist())  # of several labels, how many samples have each


def _digests(inputs: Tensor) -> Iterable[bytes]:
    """Yield a digest of each input; equal inputs have equal ones."""
    rows: NDArray[Any] = np.ascontiguousarray(inputs.flatten(1).numpy())
    if rows.dtype.kind == "f":
        rows = rows + 0.0  # so that -0.0 equals 0.0
    return (hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows)


def quick_duplicates(data: Dataset, samples: Sequence[LocalSamples]) -> dict[str, int] | None:
    """Duplicates for a run's manifest; None where counting them would delay the run."""
    inputs = data.train.inputs
    if inputs.nbytes > LARGEST_BYTES or sum(len(own.train) for own in samples) > LARGEST_SAMPLES:
        return None
    return dict(zip(("shared", "leaked"), count_duplicates(data, samples), strict=True))


def count_duplicates(data: Dataset, samples: Sequence[LocalSamples]) -> tuple[int, int]:
    """Count inputs that several agents train on, and test samples that are also trained on."""
    used = _trained(samples)
    digests = dict(zip(used.tolist(), _digests(data.train.inputs[used]), strict=True))
    seen: set[bytes] = set()
    shared: set[bytes] = set()
    for own in samples:
        has = {digests[sample] for sample in own.train.tolist()}
        shared |= seen & has
        seen |= has
    tested = np.unique(np.concatenate([own.test for own in samples]))
    return len(shared), sum(digest in seen for digest in _digests(data.test.inputs[tested]))


def _trained(samples: Sequence[LocalSamples]) -> NDArray[np.int64]:
    return np.unique(np.concatenate([own.train for own in samples]))


def _ranges(inputs: Tensor) -> tuple[tuple[float, float], ...]:
    tokens = inputs.dtype == torch.int64
    flat = inputs.reshape(1, -1) if tokens else inputs.transpose(0, 1).flatten(1)  # [C, n * ...]
    return tuple(zip(flat.amin(1).tolist(), flat.amax(1).tolist(), strict=True))
