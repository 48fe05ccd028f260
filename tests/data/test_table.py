"""Tables as datasets: data frames, CSV files, columns for target and agent, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

import peermask
from peermask.data.table import read_table, table
from peermask.errors import DataError
from peermask.reports.tables import agents_table

ROWS = pd.DataFrame(
    {
        "width": [1.0, 2, 3, 4, 5, 6, 7, 8],
        "heavy": [True, False] * 4,
        "fruit": ["pear", "fig", "pear", "fig", "fig", "pear", "fig", "pear"],
        "farm": ["b10", "b2", "b10", "b2", "b2", "b10", "b2", "b10"],
    }
)


def test_labels_and_agents_may_be_text() -> None:
    data = peermask.from_dataframe(ROWS, ROWS, target="fruit", agent="farm")
    assert (data.classes, data.shape) == (("fig", "pear"), (2,))
    assert data.train.targets.tolist() == [1, 0, 1, 0, 0, 1, 0, 1]
    assert data.train.agents is not None
    assert data.train.agents.tolist() == [1, 0, 1, 0, 0, 1, 0, 1]  # 2 comes before 10
    assert data.train.inputs[:3].tolist() == [[1, 1], [2, 0], [3, 1]]


def test_numbers_as_labels_need_not_begin_at_zero() -> None:
    data = peermask.from_dataframe(ROWS.assign(fruit=[3, 7, 3, 7, 7, 3, 7, 10]), ROWS.assign(fruit=7), target="fruit",
                                   features=["width"])  # fmt: skip
    assert data.classes == ("3", "7", "10")
    assert data.test.targets.tolist() == [1] * 8


def test_test_rows_are_drawn_from_every_agent_and_always_the_same() -> None:
    one, two = (peermask.from_dataframe(ROWS, target="fruit", agent="farm", test_share=0.25) for _ in range(2))
    assert one.test.agents is not None
    assert sorted(one.test.agents.tolist()) == [0, 1]
    assert one.fingerprint == two.fingerprint
    together = torch.cat([one.train.inputs, one.test.inputs])[:, 0]
    assert sorted(together.tolist()) == ROWS["width"].tolist()


def test_other_tasks() -> None:
    numbers = peermask.from_dataframe(ROWS[["width", "heavy"]], target="width", task="regression", test_share=0.5)
    assert (numbers.task, numbers.classes, len(numbers.test)) == ("regression", ("width",), 4)
    several = ROWS.assign(red=[0, 1] * 4)[["width", "heavy", "red"]]
    both = peermask.from_dataframe(several, target=["heavy", "red"], task="multi-label")
    assert (both.classes, both.shape) == (("heavy", "red"), (1,))


def test_a_run_from_a_csv_file(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = pd.DataFrame({"a": draw.random(60), "b": draw.random(60), "farm": ["x", "y", "z"] * 20})
    rows["kind"] = np.where(rows["a"] > rows["b"], "left", "right")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    config = {
        "agents": 3, "rounds": 2, "graph": "complete", "partition": "given", "retention": 0.5,
        "model": {"name": "mlp", "hidden": [8]},
        "dataset": {"name": "table", "path": str(tmp_path / "rows.csv"), "target": "kind", "agent": "farm"},
    }  # fmt: skip
    result = peermask.run_experiment(config, tmp_path / "run")
    assert result.status == "finished"
    assert result.manifest["classes"] == ["left", "right"]
    assert "left right" in list(agents_table(result).columns[1].cells)  # their names, not their numbers


def test_parquet_is_read_where_it_can_be(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    ROWS.to_parquet(tmp_path / "rows.parquet")
    data = table(path=str(tmp_path / "rows.parquet"), target="fruit", agent="farm")
    assert data.classes == ("fig", "pear")


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (ROWS, {"target": "fruits"}, "table has no column 'fruits'; did you mean 'fruit'"),
        (ROWS, {"target": "fruit"}, "column 'farm' holds text such as 'b10' in row 0; leave it out, or make numbers"),
        (
            ROWS.assign(farm=["1"] * (len(ROWS) - 1) + ["?"]),
            {"target": "fruit"},
            f"column 'farm' holds text such as '\\?' in row {len(ROWS) - 1}; leave it out",
        ),
        (ROWS, {"target": []}, "target is .*; classification needs a column"),
        (ROWS, {"target": ["fruit", "farm"]}, "classification needs one column"),
        (ROWS, {"target": "fruit", "features": ["fruit"]}, "column 'fruit' is target or agent"),
        (ROWS[["fruit"]], {"target": "fruit"}, "no columns to learn from beside fruit"),
        (ROWS, {"target": "fruit", "agent": "farm", "test_share": 1.0}, "test_share is 1.0; it must be above 0"),
        (ROWS, {"target": "fruit", "agent": "farm", "test_share": "x"}, "test_share is 'x'; it must be above 0"),
        (
            ROWS,
            {"target": "fruit", "task": "regression"},
            "text such as '.*' in row 0; regression needs numbers: set task = 'cl",
        ),
        (ROWS, {"target": "fruit", "agent": "farm", "task": "guessing"}, "task is 'guessing'"),
        (ROWS.assign(width=[None, *range(7)]), {"target": "fruit", "agent": "farm"}, "'width' has no value in row 0"),
        (ROWS.assign(fruit=[*"abcdefg", None]), {"target": "fruit", "agent": "farm"}, "'fruit' has no value in row 7"),
        (ROWS.assign(fruit=0.5), {"target": "fruit", "agent": "farm"}, "holds fractions, not labels.*'regression'"),
        (ROWS.assign(fruit=np.inf), {"target": "fruit", "agent": "farm"}, "holds fractions, not labels"),
        (ROWS.assign(fruit=1e300), {"target": "fruit", "agent": "farm"}, "holds fractions, not labels"),
        (ROWS[:0], {"target": "fruit", "agent": "farm"}, "table train has no samples"),
        (ROWS[:0], {"target": "fruit"}, "table train has no samples"),
        (ROWS, {"target": None}, "table has no column None"),
        (ROWS.assign(width=np.inf), {"target": "fruit", "agent": "farm"}, "NaN or infinite"),
        ([1, 2], {"target": "fruit"}, "table train has type list; give a data frame"),
        (pd.concat([ROWS, ROWS], axis=1), {"target": "fruit", "agent": "farm"}, "several columns 'fruit'; rename"),
    ],
)
def test_what_is_wrong_is_named(frame: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        peermask.from_dataframe(frame, **options)


def test_names_of_columns_may_be_numbers() -> None:
    rows = ROWS.set_axis(range(4), axis=1)  # as of a CSV file without a header
    assert peermask.from_dataframe(rows, target=2, agent=3).classes == ("fig", "pear")
    assert peermask.from_dataframe(rows[[0, 1]], target=0, task="regression").classes == ("0",)


def test_an_error_in_the_table_of_test_samples_says_so() -> None:
    with pytest.raises(DataError, match="table test has no column 'width'"):
        peermask.from_dataframe(ROWS, ROWS.drop(columns="width"), target="fruit", agent="farm")
    with pytest.raises(DataError, match="table test has no samples"):
        peermask.from_dataframe(ROWS, ROWS[:0], target="fruit", agent="farm")


def test_an_agent_without_training_rows() -> None:
    with pytest.raises(DataError, match="'farm': agent 'c' has test rows but no training rows"):
        peermask.from_dataframe(ROWS, ROWS.assign(farm="c"), target="fruit", agent="farm")


def test_numbers_of_agents_may_be_whole_in_one_table_and_float_in_the_other() -> None:
    rows = ROWS.assign(farm=[1, 1, 1, 1, 2, 2, 2, 2])
    data = peermask.from_dataframe(rows, rows.assign(farm=rows["farm"].astype(float)), target="fruit", agent="farm")
    assert data.test.agents is not None
    assert data.test.agents.tolist() == [0] * 4 + [1] * 4


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in (("empty.csv", b""), ("binary.csv", b"\xff\xfe\x00,\n1"), ("torn.csv", b'a,b\n"1,2\n')):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name} cannot be read: "):
            read_table(tmp_path / name, "dataset.path")
    with pytest.raises(DataError, match="is a folder; name a file in it"):
        read_table(tmp_path, "dataset.path")
    with pytest.raises(DataError, match=r"none\.csv does not exist"):
        read_table(tmp_path / "none.csv", "dataset.path")
    with pytest.raises(DataError, match=r"rows.xls is neither .csv nor .parquet"):
        read_table(tmp_path / "rows.xls", "dataset.path")

    def absent(_: object) -> None:
        raise ImportError("no pyarrow")

    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(pd, "read_parquet", absent)
    with pytest.raises(DataError, match=r"needs pandas, and pyarrow for Parquet; .* 'peermask\[table\]'"):
        read_table(tmp_path / "rows.parquet", "dataset.path")


class Named:
    names = ("cat", "dog")


class HuggingFace:
    """As `datasets.Dataset`: samples are dictionaries, and a feature names the labels."""

    features: ClassVar[dict[str, Any]] = {"image": None, "label": Named()}

    def __init__(self, keys: tuple[str, str] = ("image", "label")) -> None:
        self.keys = keys

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {self.keys[0]: np.full((8, 8), index, np.uint8), self.keys[1]: index % 2, "id": str(index)}


class TorchVision(torch.utils.data.Dataset[Any]):
    classes: ClassVar[list[str]] = ["zero", "one", "two"]

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.full((8, 8), index, np.uint8), index % 2


def test_data_sets_of_hugging_face_and_torchvision_as_they_are() -> None:
    data = peermask.from_torch(HuggingFace(), HuggingFace())
    assert (data.classes, data.shape, len(data.train)) == (("cat", "dog"), (1, 8, 8), 6)
    other = HuggingFace(("photo", "what"))
    assert peermask.from_torch(other, other, columns=("photo", "what")).train.targets.tolist() == [0, 1] * 3
    assert peermask.from_torch(TorchVision(), TorchVision()).classes == ("zero", "one", "two")


@pytest.mark.parametrize(
    ("samples", "columns", "message"),
    [
        (
            HuggingFace(("photo", "what")),
            None,
            r"dict of 'photo', 'what', 'id'; say which are input .* from_dataframe\(",
        ),
        (HuggingFace(("photo", "what")), ("image", "label"), "'photo', 'what', 'id', but no 'image'; change columns"),
        ({"train": [1], "test": [2]}, None, r"type dict; give a map-style .*\): one of its splits, 'train', 'test'"),
        ([(np.zeros((4, 4)), None)], None, r"sample 0 is not \(image, label\) with a whole number or text as label"),
        ([np.zeros((4, 4))], None, r"sample 0 is not \(image, label\)"),
        (
            [(np.zeros((4, 4)), 0), (np.zeros((4, 5)), 0)],
            None,
            r"image 1 has shape \(4, 5\), .*\(4, 4\); make all alike",
        ),
    ],
)
def test_data_sets_of_another_style(samples: Any, columns: tuple[str, str] | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        peermask.from_torch(samples, samples, columns=columns)
