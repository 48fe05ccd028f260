"""Arrays of your own as a Dataset: numpy arrays, torch tensors, or any map-style torch dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from peermask.data.dataset import Dataset, Split
from peermask.errors import DataError

CHANNELS = range(1, 5)  # an axis this short is taken for the channels


class LabelledImages(Protocol):
    """A map-style dataset that yields (image, label), such as those of torchvision."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def from_arrays(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike,
    y_test: ArrayLike,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
) -> Dataset:
    """Make a dataset from numpy arrays or torch tensors.

    Args:
        x_train: Images [n, H, W], [n, C, H, W] or [n, H, W, C], integers 0 to 255 or floats in [0, 1]. Of four axes
            the second is the channels if its length is 1 to 4, else the last.
        y_train: Labels [n], integers from 0.
        x_test: Test images, of the same shape and type.
        y_test: Test labels.
        classes: Names of the labels; their numbers if left out.
        name: What to call the dataset in tables and errors.

    Returns:
        A dataset for `run_experiment(config, dataset=...)`.

    Raises:
        DataError: A shape, type or value is not as described.

    Examples:
        >>> import numpy as np, peermask
        >>> images, labels = np.zeros((20, 8, 8), dtype=np.uint8), np.arange(20) % 4
        >>> dataset = peermask.from_arrays(images, labels, images, labels, name="blank")
        >>> dataset.classes
        ('0', '1', '2', '3')
    """
    images = [to_images(x, f"{name} {key}") for x, key in ((x_train, "x_train"), (x_test, "x_test"))]
    labels = [to_labels(y, f"{name} {key}") for y, key in ((y_train, "y_train"), (y_test, "y_test"))]
    if images[0].dtype != images[1].dtype:
        raise DataError(f"{name} x_train is {images[0].dtype} but x_test is {images[1].dtype}; make them the same")
    if classes is None:
        highest = max((int(y.max()) for y in labels if len(y)), default=0)
        classes = [str(label) for label in range(highest + 1)]
    peak = 255.0 if images[0].dtype == torch.uint8 else 1.0
    return Dataset(name, Split(images[0], labels[0]), Split(images[1], labels[1]), tuple(classes), peak)


def from_torch(
    train: LabelledImages, test: LabelledImages, classes: Sequence[str] | None = None, name: str = "torch"
) -> Dataset:
    """Make a dataset from two map-style torch datasets, such as those of torchvision.

    Args:
        train: Training samples (image, label), all read at once. Images as for `from_arrays`.
        test: Test samples.
        classes: Names of the labels; their numbers if left out.
        name: What to call the dataset in tables and errors.

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
    x_train, y_train = stacked(train, f"{name} train")
    x_test, y_test = stacked(test, f"{name} test")
    return from_arrays(x_train, y_train, x_test, y_test, classes, name)


def stacked(samples: LabelledImages, name: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    if not hasattr(samples, "__len__") or not hasattr(samples, "__getitem__") or isinstance(samples, Mapping):
        raise DataError(f"{name} is a {type(samples).__name__}; give a map-style data set of (image, label)")
    if not len(samples):
        raise DataError(f"{name} has no samples")
    pairs = [_pair(samples[index], f"{name} sample {index}") for index in range(len(samples))]
    images = [np.asarray(image) for image, _ in pairs]
    odd = next((k for k, image in enumerate(images) if image.shape != images[0].shape), None)
    if odd is not None:
        raise DataError(f"{name} image {odd} has shape {images[odd].shape}, but image 0 has {images[0].shape}")
    return np.stack(images), np.array([label for _, label in pairs], dtype=np.int64)


def _pair(sample: Any, name: str) -> tuple[Any, int]:
    if isinstance(sample, Mapping):
        keys = ", ".join(map(repr, sample))
        raise DataError(f"{name} is a dict of {keys}; give pairs: [(s['image'], s['label']) for s in samples]")
    try:
        image, label = sample
        return image, int(label)
    except (TypeError, ValueError):
        raise DataError(f"{name} is not (image, label) with a whole number as label") from None


def to_images(values: ArrayLike, name: str) -> Tensor:
    array = np.asarray(values)
    if array.ndim == 3:
        array = array[:, None]  # [n, H, W] -> [n, 1, H, W]
    if array.ndim != 4:
        raise DataError(f"{name} has shape {array.shape}; images are [n, H, W], [n, C, H, W] or [n, H, W, C]")
    if array.shape[1] not in CHANNELS and array.shape[3] in CHANNELS:
        array = array.transpose(0, 3, 1, 2)  # [n, H, W, C] -> [n, C, H, W]
    if array.dtype.kind not in "buif":
        raise DataError(f"{name} holds {array.dtype}; images are whole numbers 0 to 255 or floats in [0, 1]")
    whole = array.dtype.kind != "f"
    most = 255 if whole else 1
    if np.isnan(array.min(initial=0)):
        raise DataError(f"{name} has a pixel that is NaN; images are whole numbers 0 to 255 or floats in [0, 1]")
    if array.size and not (array.min() >= 0 and array.max() <= most):
        raise DataError(
            f"{name} has pixels from {array.min()} to {array.max()}; "
            f"{array.dtype} images lie in [0, {most}]: rescale them"
        )
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.uint8 if whole else np.float32))


def to_labels(values: ArrayLike, name: str) -> Tensor:
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "ui":
        raise DataError(f"{name} is {array.dtype} of shape {array.shape}; labels are whole numbers [n] from 0")
    return torch.from_numpy(array.astype(np.int64))
