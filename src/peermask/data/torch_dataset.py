"""A map-style torch dataset of your own as a Dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from peermask.data.arrays import Kind, from_arrays
from peermask.data.dataset import Dataset, Task
from peermask.data.normalisation import Wish
from peermask.errors import DataError


class LabelledSamples(Protocol):
    """A map-style dataset that yields (input, target), such as those of torchvision."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def from_torch(
    train: LabelledSamples,
    test: LabelledSamples,
    classes: Sequence[str] | None = None,
    name: str = "torch",
    *,
    kind: Kind | None = None,
    task: Task = "classification",
    normalise: Wish | None = None,
    vocabulary: int | None = None,
) -> Dataset:
    """Make a dataset from two map-style torch datasets, such as those of torchvision.

    Args:
        train: Training samples (input, target), all read at once. Both as for `from_arrays`.
        test: Test samples.
        classes: Names of the labels or outputs; their numbers if left out.
        name: What to call the dataset in tables and errors.
        kind: As for `from_arrays`.
        task: As for `from_arrays`.
        normalise: As for `from_arrays`.
        vocabulary: As for `from_arrays`.

    Returns:
        A dataset for `run_experiment(config, dataset=...)`.

    Raises:
        DataError: A split is empty, or a shape, type or value is not as described.

    Examples:
        >>> import peermask, torch
        >>> samples = torch.utils.data.TensorDataset(torch.rand(20, 1, 8, 8), torch.arange(20) % 4)
        >>> peermask.from_torch(samples, samples).classes
        ('0', '1', '2', '3')
    """
    whole = task == "classification"
    x_train, y_train = stacked(train, f"{name} train", whole=whole)
    x_test, y_test = stacked(test, f"{name} test", whole=whole)
    return from_arrays(
        x_train,
        y_train,
        x_test,
        y_test,
        classes,
        name,
        kind=kind,
        task=task,
        normalise=normalise,
        vocabulary=vocabulary,
    )


def stacked(samples: LabelledSamples, name: str, *, whole: bool = True) -> tuple[NDArray[Any], NDArray[Any]]:
    if isinstance(samples, DataLoader):
        raise DataError(f"{name} is a DataLoader; give the data set it loads: loader.dataset")
    if not hasattr(samples, "__len__") or not hasattr(samples, "__getitem__") or isinstance(samples, Mapping):
        raise DataError(f"{name} is a {type(samples).__name__}; give a map-style data set of (image, label)")
    if not len(samples):
        raise DataError(f"{name} has no samples")
    pairs = [_pair(samples[index], f"{name} sample {index}", whole=whole) for index in range(len(samples))]
    columns = []
    for what, values in zip(("image", "target"), zip(*pairs, strict=True), strict=True):
        odd = next((k for k, value in enumerate(values) if value.shape != values[0].shape), None)
        if odd is not None:
            raise DataError(f"{name} {what} {odd} has shape {values[odd].shape}, but {what} 0 has {values[0].shape}")
        columns.append(np.stack(values))
    return columns[0], columns[1]


def _pair(sample: Any, name: str, *, whole: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    if isinstance(sample, Mapping):
        keys = ", ".join(map(repr, sample))
        raise DataError(f"{name} is a dict of {keys}; give pairs: [(s['image'], s['label']) for s in samples]")
    try:
        image, target = sample
        return np.asarray(image), np.asarray(int(target) if whole else target)
    except (TypeError, ValueError):
        raise DataError(f"{name} is not (image, label) with a whole number as label") from None
