"""Data sets of Hugging Face `datasets` as they are; skipped where the package is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import peermask


@pytest.fixture
def hugging_face() -> Any:
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")

    def make(names: tuple[str, str]) -> Any:
        pixels = np.arange(6 * 72, dtype=np.uint16).reshape(6, 8, 9).astype(np.uint8)
        columns = {names[0]: [image.fromarray(array) for array in pixels], names[1]: [0, 1, 2] * 2}
        kinds = {names[0]: datasets.Image(), names[1]: datasets.ClassLabel(names=["fig", "pear", "plum"])}
        return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))

    return make


def test_images_and_class_names(hugging_face: Any) -> None:
    data = hugging_face(("image", "label"))
    for taken in (data, data.with_format("torch")):
        read = peermask.from_torch(taken, taken)
        assert read.shape == (1, 8, 9)
        assert read.classes == ("fig", "pear", "plum")
        assert read.train.targets.tolist() == [0, 1, 2] * 2


def test_other_names_of_columns(hugging_face: Any) -> None:
    data = hugging_face(("photo", "species"))
    assert peermask.from_torch(data, data, columns=("photo", "species")).classes == ("fig", "pear", "plum")
    with pytest.raises(peermask.PeermaskError, match="is a dict of 'photo', 'species'; say which"):
        peermask.from_torch(data, data)
    with pytest.raises(peermask.PeermaskError, match="but no 'nope'; change columns"):
        peermask.from_torch(data, data, columns=("photo", "nope"))
