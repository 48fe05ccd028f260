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

INPUT_KEYS = ("image", "img", "pixel_values", "input", "inputs", "features", "input_ids", "x")
TARGET_KEYS = ("label", "labels", "fine_label", "target", "targets", "y")


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
    columns: tuple[str, str] | None = None,
) -> Dataset:
    """Make a dataset from two map-style torch datasets, of torchvision, or of Hugging Face `datasets`.

    Args:
        train: Training samples, all read at once: pairs (input, target), or dictionaries with both. Both as for
            `from_arrays`.
        test: Test samples.
        classes: Names of the labels or outputs; if left out, those that `train` has (`classes`, or `names` of its
            label feature), or else numbers.
        name: What to call the dataset in tables and errors.
        kind: As for `from_arrays`.
        task: As for `from_arrays`.
        normalise: As for `from_arrays`.
        vocabulary: As for `from_arrays`.
        columns: Keys of input and target, if samples are dictionaries; usual ones are found if left out.

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
    x_train, y_train = read_samples(train, f"{name} train", whole=whole, columns=columns)
    x_test, y_test = read_samples(test, f"{name} test", whole=whole, columns=columns)
    if classes is None and whole and "U" not in (y_train.dtype.kind, y_test.dtype.kind):
        classes = _class_names(train, max(int(y_train.max()), int(y_test.max())), columns)
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


def read_samples(
    samples: LabelledSamples, name: str, *, whole: bool = True, columns: tuple[str, str] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read all inputs and targets."""
    if isinstance(samples, DataLoader):
        raise DataError(f"{name} is a DataLoader; give the data set it loads: loader.dataset")
    if not hasattr(samples, "__len__") or not hasattr(samples, "__getitem__") or isinstance(samples, Mapping):
        hint = f": one of its splits, {', '.join(map(repr, samples))}" if isinstance(samples, Mapping) else ""
        raise DataError(f"{name} has type {type(samples).__name__}; give a map-style data set of (image, label){hint}")
    if not len(samples):
        raise DataError(f"{name} has no samples")
    pairs = [
        _pair(samples[index], f"{name} sample {index}", whole=whole, keys=columns) for index in range(len(samples))
    ]
    read = []
    for what, values in zip(("image", "target"), zip(*pairs, strict=True), strict=True):
        odd = next((k for k, value in enumerate(values) if value.shape != values[0].shape), None)
        if odd is not None:
            raise DataError(
                f"{name} {what} {odd} has shape {values[odd].shape}, but {what} 0 has {values[0].shape}; make all alike"
            )
        read.append(np.stack(values))
    return read[0], read[1]


def _pair(sample: Any, name: str, *, whole: bool, keys: tuple[str, str] | None) -> tuple[NDArray[Any], NDArray[Any]]:
    if isinstance(sample, Mapping):
        input_key, target_key = _keys(sample, name, keys)
        sample = sample[input_key], sample[target_key]
    try:
        image, target = sample
        return np.asarray(image), np.asarray(int(target) if whole and not isinstance(target, str) else target)
    except (TypeError, ValueError):
        raise DataError(f"{name} is not (image, label) with a whole number or text as label") from None


def _keys(sample: Mapping[str, Any], name: str, keys: tuple[str, str] | None) -> tuple[str, str]:
    """Find input and target in a sample of Hugging Face `datasets`."""
    there = ", ".join(map(repr, sample))
    if keys is not None:
        if unknown := [key for key in keys if key not in sample]:
            raise DataError(f"{name} has {there}, but no {unknown[0]!r}; change columns")
        return keys
    found = [[key for key in usual if key in sample] for usual in (INPUT_KEYS, TARGET_KEYS)]
    if not all(found):
        raise DataError(
            f"{name} is a dict of {there}; say which are input and target: columns=('image', 'label'); if several are "
            "inputs, use from_dataframe(data.to_pandas(), target=...)"
        )
    return found[0][0], found[1][0]


def _class_names(samples: Any, highest: int, columns: tuple[str, str] | None) -> list[str] | None:
    """Names that a data set of torchvision or Hugging Face has for its labels, if it has them for all."""
    features = getattr(samples, "features", None)
    names = getattr(samples, "classes", None)
    if isinstance(features, Mapping):
        key = columns[1] if columns else next((key for key in TARGET_KEYS if key in features), "")
        names = getattr(features.get(key), "names", None)
    if not isinstance(names, list | tuple) or len(names) <= highest or not all(isinstance(n, str) for n in names):
        return None
    return list(names)
