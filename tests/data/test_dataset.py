"""A dataset is checked when it is made; the embedded digits are always the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from peermask.data import Dataset, Split, datasets
from peermask.data.normalisation import Range
from peermask.errors import DataError


def split(count: int = 3, **changes: Any) -> Split:
    given: dict[str, Tensor] = {"inputs": torch.zeros(count, 1, 2, 2), "targets": torch.arange(count) % 2}
    return Split(**(given | changes))


def dataset(train: Split, test: Split | None = None, **changes: Any) -> Dataset:
    given: dict[str, Any] = {"name": "toy", "classes": ("a", "b"), "normalisation": Range(high=1.0)}
    return Dataset(train=train, test=test or split(), **(given | changes))


def test_pixels_are_normalised_to_minus_one_and_one() -> None:
    toy = dataset(split(), normalisation=Range(high=16.0))
    pixels = tensor([0, 4, 8, 16], dtype=torch.uint8).view(1, 1, 2, 2)
    assert toy.normalise(pixels).flatten().tolist() == [-1, -0.5, 0, 1]
    floats = torch.ones(1, 1, 1, 1)
    toy.normalise(floats)
    assert floats.item() == 1  # the images themselves are left alone


def test_a_notebook_shows_sizes_and_not_every_sample() -> None:
    shown = repr(datasets["digits"].make())
    assert "train=Split(1437 samples, inputs of torch.uint8 (1, 8, 8))" in shown
    assert len(shown) < 500


def test_the_shape_is_channels_height_width() -> None:
    assert dataset(split()).shape == (1, 2, 2)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (split(inputs=torch.zeros(2, 1, 2, 2)), "toy train has 2 inputs but 3 targets"),
        (split(inputs=torch.zeros(3)), r"toy train inputs have shape \(3,\)"),
        (split(inputs=torch.zeros(3, 0)), r"toy train inputs have shape \(3, 0\)"),
        (split(inputs=torch.zeros(3, 2, dtype=torch.int64)), "tokens are int64 and have a vocabulary"),
        (split(inputs=torch.zeros(3, 1, 2, 2).double()), "float64; uint8, float32"),
        (split(inputs=torch.full((3, 1, 2, 2), torch.nan)), "NaN or infinite"),
        (split(targets=tensor([0, 1, 2])), "labels from 0 to 2, but 2 classes are 0 to 1"),
        (split(targets=tensor([0, -1, 1])), "labels from -1 to 1"),
        (split(targets=tensor([0, 1, 1]).int()), "labels are torch.int32"),
        (split(count=0), "toy train has no samples"),
        (split(inputs=torch.zeros(3, 1, 4, 2)), "train inputs of shape"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_value(train: Split, message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataset(train)


@pytest.mark.parametrize(
    ("change", "message"), [({"classes": ()}, "no classes"), ({"task": "dreams"}, "task 'dreams'")]
)
def test_classes_and_a_task_are_needed(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataset(split(), **change)


def test_the_fingerprint_changes_with_any_part() -> None:
    same = dataset(split()).fingerprint
    assert dataset(split()).fingerprint == same
    changed = split(targets=tensor([1, 1, 0]))
    others = [dataset(changed), dataset(split(), changed), dataset(split(), classes=("a", "c"))]
    assert len({same, *(other.fingerprint for other in others)}) == 4


def test_digits_are_split_once_and_for_all() -> None:
    digits = datasets["digits"].make()
    assert (len(digits.train), len(digits.test), digits.shape) == (1437, 360, (1, 8, 8))
    assert digits.test.targets.bincount().tolist() == [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]
    assert int(digits.train.inputs.max()) == digits.normalisation.high == 16
    assert digits.fingerprint == "1b8d26649b8bbf1289d4015d37e72040be062d2f424f2af32d4cde2cffc28438"


def test_every_dataset_has_a_summary() -> None:
    assert [entry.name for entry in datasets] == ["cifar10", "digits", "fashion-mnist", "folders", "npz", "table"]
    assert all(entry.summary for entry in datasets)
