"""Data sets of Hugging Face `datasets` as they are; skipped where the package is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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


def test_a_table_by_way_of_pandas(hugging_face: Any) -> None:
    rows = hugging_face(("photo", "species")).remove_columns("photo").add_column("weight", [1.0, 2.0] * 3)
    assert peermask.from_dataframe(rows.to_pandas(), target="species").shape == (1,)


def test_a_run_and_its_ticket(hugging_face: Any, tmp_path: Path) -> None:
    data = hugging_face(("image", "label"))
    config = {"agents": 2, "rounds": 1, "graph": "complete", "partition": "everything", "model": "mlp"}
    result = peermask.run_experiment(config, tmp_path / "run", dataset=peermask.from_torch(data, data))
    peermask.export(result, 0, tmp_path / "a.ticket")
    assert peermask.evaluate(tmp_path / "a.ticket", peermask.from_torch(data, data)).samples == 6


@pytest.mark.parametrize(
    ("change", "columns", "message"),
    [
        (
            lambda data: data,
            None,
            r"is a dict of 'photo', 'species'; say which .* use from_dataframe\(data.to_pandas\(\)",
        ),
        (lambda data: data, ("photo", "nope"), "but no 'nope'; change columns"),
        (lambda data: data.to_iterable_dataset(), None, "has type IterableDataset; give a map-style data set"),
        (
            lambda data: data.train_test_split(2),
            None,
            "has type DatasetDict; give .*: one of its splits, 'train', 'test'",
        ),
        (lambda data: data.select([]), None, "torch train has no samples"),
    ],
)
def test_what_is_wrong_is_named(
    hugging_face: Any, change: Callable[[Any], Any], columns: tuple[str, str] | None, message: str
) -> None:
    data = change(hugging_face(("photo", "species")))
    with pytest.raises(peermask.PeermaskError, match=message):
        peermask.from_torch(data, data, columns=columns)
