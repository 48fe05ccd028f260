"""Targets of your own: labels, several labels at once, or numbers, as the task needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from peermask.data.dataset import Task, check_finite
from peermask.errors import DataError

FEW = 1000  # labels up to here may leave out as many as they like


def to_targets(values: ArrayLike, task: Task, name: str) -> Tensor:
    array = np.asarray(values)
    match task:
        case "classification":
            return to_labels(array, name)
        case "multi-label":
            return to_label_sets(array, name)
        case "regression":
            return to_numbers(array, name)


def to_labels(array: NDArray[Any], name: str) -> Tensor:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "ui":
        other = "regression" if array.dtype.kind == "f" else "multi-label"
        hint = f"; or is it task = {other!r}?" if array.ndim in (1, 2) and array.dtype.kind in "buif" else ""
        raise DataError(f"{name} is {array.dtype} of shape {array.shape}; labels are whole numbers [n] from 0{hint}")
    return torch.from_numpy(array.astype(np.int64))


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


def names_of(targets: Sequence[Tensor], task: Task, classes: Sequence[str] | None, name: str) -> tuple[str, ...]:
    """The given names of labels or outputs, or else numbers, as many as there are."""
    if classes is not None:
        return tuple(classes)
    if task != "classification":
        return tuple(str(output) for output in range(targets[0].shape[1]))
    return tuple(str(label) for label in range(count_of(targets, f"{name} has a label", "classes")))


def count_of(values: Sequence[Tensor], what: str, key: str) -> int:
    """How many labels or tokens there are by the highest, unless that lies far beyond how many are different."""
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
