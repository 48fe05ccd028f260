"""Tables as arrays, and the accuracy that is reported, worked by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from peermask.errors import RunError
from peermask.store.table import append_rows, nanmean, read_table, reported_mean

COLUMNS = ("round", "agent", "test_accuracy", "kind")
nan = float("nan")


def test_reported_is_the_mean_of_the_evaluations_in_the_last_quarter_of_an_agents_rounds() -> None:
    rounds = np.array([2, 6, 7, 8])
    values = np.array([[0.1, 0.3, 0.5], [0.2, 0.4, 0.7], [0.6, 0.5, nan], [0.8, nan, nan]])
    there = np.array([[True, True, True], [True, True, True], [True, True, False], [True, True, False]])
    # Agent 0: rounds above 6. Agent 1: likewise, of which one is unknown. Agent 2 ended in round 6: above 4.5.
    assert reported_mean(rounds, values, there) == pytest.approx([0.7, 0.5, 0.7])


def test_the_only_evaluation_is_reported_and_none_is_unknown() -> None:
    there = np.array([[True, False]])
    assert reported_mean(np.array([1]), np.array([[0.5, nan]]), there) == pytest.approx([0.5, nan], nan_ok=True)
    assert np.isnan(nanmean(np.array([nan])))


def test_a_table_is_arrays_of_rounds_by_agents(tmp_path: Path) -> None:
    append_rows(tmp_path / "a.csv", COLUMNS, [[10, 0, 0.5, "delta"], [20, 0, 0.6, ""]])
    append_rows(tmp_path / "b.csv", COLUMNS, [[10, 2, 0.7, "keyframe"], [10, 5, 0.1, ""]])
    table = read_table(tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "none.csv", agents=3)
    assert table.rounds.tolist() == [10, 20]
    assert table.has_row.tolist() == [[True, False, True], [True, False, False]]
    assert table["test_accuracy"][0].tolist() == pytest.approx([0.5, nan, 0.7], nan_ok=True)
    assert table.words["kind"].tolist() == [["delta", "", "keyframe"], ["", "", ""]]
    assert table.last("test_accuracy").tolist() == pytest.approx([0.6, nan, 0.7], nan_ok=True)
    assert read_table(tmp_path / "b.csv").has_row.shape == (1, 6)
    with pytest.raises(RunError, match=r"a\.csv is damaged \(line 1: no column 'f1'\)"):
        table["f1"]


def test_a_table_without_rows_has_every_column(tmp_path: Path) -> None:
    table = read_table(tmp_path / "none.csv", agents=2)
    assert table["anything"].shape == (0, 2)
    assert np.isnan(table.reported_mean("anything")).all()
    assert np.isnan(table.last("anything")).all()


def test_run_folders_are_read_without_torch() -> None:
    """Importing torch takes seconds, and a table needs none."""
    modules = ["checkpoint", "folder", "result", "table"]
    names = [*(f"peermask.store.{name}" for name in modules), "peermask.task", "peermask.reports.tables"]
    code = f"import sys, {', '.join(names)}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
