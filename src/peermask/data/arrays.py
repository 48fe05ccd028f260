"""Arrays of your own as a Dataset: numpy arrays or torch tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from peermask.data.dataset import TASKS, Dataset, Split, Task, check_finite
from peermask.data.normalisation import Normalisation, Range, Statistics, Wish, resolve, statistics_of
from peermask.errors import DataError, nearest

FEW = 1000  # labels up to here may leave out as many as they like


def to_labels(array: NDArray[Any], name: str) -> Tensor:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "ui":
        other = "regression" if array.dtype.kind == "f" else "multi-label"
        hint = f"; or is it task = {other!r}?" if array.ndim in (1, 2) and array.dtype.kind in "buif" else ""
        raise DataError(f"{name} is {array.dtype} of shape {array.shape}; labels are whole numbers [n] from 0{hint}")
    return torch.from_numpy(array.astype(np.int64))


def is_text(array: NDArray[Any]) -> bool:
    if array.ndim != 1:
        return False
    return array.dtype.kind in "UT" or (array.dtype.kind == "O" and all(isinstance(value, str) for value in array))


def number_text(
    splits: Mapping[str, NDArray[Any]], classes: Sequence[str] | None
) -> tuple[Sequence[str], dict[str, NDArray[Any]]]:
    """Number labels that are text: by `classes`, or else in alphabetical order."""
    for name, labels in splits.items():
        if not is_text(labels):
            raise DataError(f"{name} has numbers as labels, but the other split has text; give both the same")
    classes = classes or sorted({str(label) for labels in splits.values() for label in labels})
    numbers = {label: number for number, label in enumerate(classes)}
    for name, labels in splits.items():
        if unknown := sorted({*map(str, labels)} - {*numbers}):
            raise DataError(f"{name} has label {unknown[0]!r}, which is not in classes; add it")
    return classes, {name: np.array([numbers[str(each)] for each in labels], int) for name, labels in splits.items()}


def to_label_sets(array: NDArray[Any], name: str) -> Tensor:
    if array.ndim != 2 or array.dtype.kind not in "buif" or not array.shape[1]:
        raise DataError(f"{name} is {array.dtype} of shape {array.shape}; several labels are [n, labels], 0 or 1 each")
    return torch.from_numpy(array.astype(np.float32))


def to_numbers(array: NDArray[Any], name: str) -> Tensor:
    if array.ndim not in (1, 2) or array.dtype.kind not in "uif" or 0 in array.shape[1:]:
        raise DataError(f"{name} is {array.dtype} of shape {array.shape}; a regression has numbers [n] or [n, outputs]")
    with np.errstate(over="ignore"):  # what is too large for a float32 is infinite, and refused
        numbers = torch.from_numpy(array.reshape(len(array), -1).astype(np.float32))
    check_finite(numbers, name)
    return numbers


TO_TARGETS = {"classification": to_labels, "multi-label": to_label_sets, "regression": to_numbers}


def names_of(targets: Sequence[Tensor], task: Task, classes: Sequence[str] | None, name: str) -> tuple[str, ...]:
    """Names of labels or outputs, numbers by default."""
    if classes is not None:
        return tuple(classes)
    if task != "classification":
        return tuple(str(output) for output in range(targets[0].shape[1]))
    return tuple(str(label) for label in range(count_of(targets, f"{name} has a label", "classes")))


def count_of(values: Sequence[Tensor], what: str, key: str) -> int:
    """Count labels or tokens by the highest, unless it is far above the number of distinct ones."""
    highest = max((int(each.max()) for each in values if each.numel()), default=0)
    different = len(torch.unique(torch.cat([each.flatten() for each in values]))) if highest >= FEW else 0
    if highest >= FEW and highest >= 10 * different:
        raise DataError(f"{what} {highest} among {different} different ones; number them from 0, or set {key}")
    return highest + 1


def to_agents(values: ArrayLike | None, name: str) -> Tensor | None:
    """[n]: the agent of each sample."""
    if values is None:
        return None
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "ui":
        raise DataError(f"{name} is {array.dtype} of shape {array.shape}; agents are whole numbers [n] from 0")
    return torch.from_numpy(array.astype(np.int64))


Kind: TypeAlias = Literal["images", "features", "tokens"]
KINDS: tuple[Kind, ...] = get_args(Kind)
WISH: TypeAdapter[Wish] = TypeAdapter(Wish)
CHANNELS = range(1, 5)  # an axis this short is taken for the channels


def from_arrays(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike,
    y_test: ArrayLike,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
    *,
    kind: Kind | None = None,
    task: Task = "classification",
    normalise: Wish | None = None,
    target_scale: Statistics | None = None,
    vocabulary: int | None = None,
    agent_train: ArrayLike | None = None,
    agent_test: ArrayLike | None = None,
) -> Dataset:
    """Make a dataset from numpy arrays or torch tensors.

    Args:
        x_train: Inputs, the first axis over samples; see `kind`.
        y_train: Targets: labels [n], whole numbers from 0 or text; for "multi-label" [n, labels], 0 or 1 each; for
            "regression" numbers [n] or [n, outputs].
        x_test: Test inputs, of the same shape and type.
        y_test: Test targets.
        classes: Names of the labels or outputs; their numbers if left out.
        name: What to call the dataset in tables and errors.
        kind: "images" [n, H, W], [n, C, H, W] or [n, H, W, C], integers 0 to 255 or floats in [0, 1]; of four axes the
            second is the channels if its length is 1 to 4, else the last; "features", numbers of any range and
            shape such as [n, F] or [n, C, T]; or "tokens", whole numbers [n, T]. If left out, three and four axes are
            images, and other floats are features.
        task: "classification", "multi-label" or "regression".
        normalise: "none", "statistics" of the training data by feature or channel, `Range(low=..., high=...)` or
            `Statistics(mean=..., std=...)`, both also as a dictionary. If left out, pixels are carried to [-1, 1] and
            features have mean 0 and deviation 1.
        target_scale: Mean and deviation of a regression's targets, which its network is to give as numbers around 0; of
            the training data if left out.
        vocabulary: How many tokens there are; the highest that occurs, plus one, if left out.
        agent_train: Which agent each training sample belongs to, whole numbers [n] from 0: for the partition "given".
        agent_test: Likewise of test samples.

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
        >>> table, prices = np.random.rand(20, 3), np.random.rand(20)
        >>> peermask.from_arrays(table, prices, table, prices, task="regression").shape
        (3,)
    """
    if task not in TASKS:
        raise DataError(f"{name} task is {task!r}; {nearest(str(task), TASKS)}")
    kind = _kind(np.asarray(x_train), kind, f"{name} x_train")
    any_range = normalise is not None
    xs, ys = ((x_train, "x_train"), (x_test, "x_test")), ((y_train, "y_train"), (y_test, "y_test"))
    made = [_inputs(x, kind, f"{name} {key}", any_range=any_range) for x, key in xs]
    answers = {f"{name} {key}": np.asarray(y) for y, key in ys}
    if task == "classification" and any(map(is_text, answers.values())):
        classes, answers = number_text(answers, classes)
    targets = [TO_TARGETS[task](array, key) for key, array in answers.items()]
    if made[0].dtype != made[1].dtype:
        raise DataError(f"{name} x_train is {made[0].dtype} but x_test is {made[1].dtype}; make them the same")
    if kind == "tokens" and vocabulary is None:
        vocabulary = count_of(made, f"{name} has a token", "vocabulary")
    return Dataset(
        name,
        Split(made[0], targets[0], to_agents(agent_train, f"{name} agent_train")),
        Split(made[1], targets[1], to_agents(agent_test, f"{name} agent_test")),
        names_of(targets, task, classes, name),
        _normalisation(normalise, kind, made[0], name),
        task,
        vocabulary if kind == "tokens" else None,
        (target_scale or statistics_of(targets[0], f"{name} y_train"))
        if task == "regression" and len(targets[0])
        else None,
    )


def _kind(array: NDArray[Any], kind: Kind | None, name: str) -> Kind:
    if kind is not None:
        if kind not in KINDS:
            raise DataError(f"{name} kind is {kind!r}; {nearest(str(kind), KINDS)}")
        return kind
    if array.ndim in (3, 4):
        return "images"
    if array.ndim == 2 and array.dtype.kind in "ui":
        raise DataError(f"{name} is {array.dtype} of shape {array.shape}; say kind = 'tokens' or kind = 'features'")
    return "features"


def _inputs(values: ArrayLike, kind: Kind, name: str, *, any_range: bool) -> Tensor:
    array = np.asarray(values)
    if array.dtype.kind not in "buif":
        raise DataError(f"{name} holds {array.dtype}; inputs are numbers")
    match kind:
        case "images":
            return to_images(array, name, any_range=any_range)
        case "features":
            return to_features(array, name)
        case "tokens":
            return to_tokens(array, name)


def _normalisation(wish: Wish | Mapping[str, Any] | None, kind: Kind, train: Tensor, name: str) -> Normalisation:
    if kind == "tokens":
        if wish not in (None, "none"):
            raise DataError(f"{name} normalise is {wish!r}, but tokens are numbers of words: leave it out")
        return None
    if not len(train):
        return None  # an error later on
    default: Wish = "statistics" if kind == "features" else Range(high=255.0 if train.dtype == torch.uint8 else 1.0)
    return resolve(_wish(wish, name), train, default, name)


def _wish(wish: object, name: str) -> Wish | None:
    if wish is None or isinstance(wish, Range | Statistics):
        return wish
    try:
        return WISH.validate_python(wish)
    except ValidationError:
        raise DataError(
            f"{name} normalise is {wish!r}; it is 'none', 'statistics', {{low, high}} or {{mean, std}}"
        ) from None


def to_images(array: NDArray[Any], name: str, *, any_range: bool = False) -> Tensor:
    """[n, C, H, W]; `any_range`: normalisation was given, so pixels may be any numbers."""
    if array.ndim == 3:
        array = array[:, None]  # [n, H, W] -> [n, 1, H, W]
    if array.ndim != 4:
        raise DataError(f"{name} has shape {array.shape}; images are [n, H, W], [n, C, H, W] or [n, H, W, C]")
    if array.shape[1] not in CHANNELS and array.shape[3] in CHANNELS:
        array = array.transpose(0, 3, 1, 2)  # [n, H, W, C] -> [n, C, H, W]
    whole = array.dtype.kind != "f" and not (any_range and array.dtype != np.uint8)
    most = 255 if whole else 1
    if np.isnan(array.min(initial=0)):
        raise DataError(f"{name} has a pixel that is NaN; images are whole numbers 0 to 255 or floats in [0, 1]")
    if array.size and not any_range and not (array.min() >= 0 and array.max() <= most):
        raise DataError(
            f"{name} has pixels from {array.min()} to {array.max()}; {array.dtype} images lie in [0, {most}]: "
            "rescale them, say how to normalise them, or say kind = 'features' of other numbers such as [n, C, T]"
        )
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.uint8 if whole else np.float32))


def to_features(array: NDArray[Any], name: str) -> Tensor:
    if array.ndim < 2:
        raise DataError(f"{name} has shape {array.shape}; features are [n, F], [n, C, T] or of more axes")
    with np.errstate(over="ignore"):  # what is too large for a float32 is infinite, and refused
        features = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    check_finite(features, name)
    return features


def to_tokens(array: NDArray[Any], name: str) -> Tensor:
    if array.ndim != 2 or array.dtype.kind not in "ui":
        raise DataError(f"{name} is {array.dtype} of shape {array.shape}; tokens are whole numbers [n, T]")
    return torch.from_numpy(array.astype(np.int64))
