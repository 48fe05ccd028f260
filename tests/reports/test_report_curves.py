"""Curves, worked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from peermask.reports.curves import POINTS, Curves, curves_of, even_choice, rounded, spread
from peermask.run.metrics import METRICS
from peermask.store.table import append_rows, read_table


def curves_from(folder: Path, *rows: tuple[int, int, float], agents: int) -> Curves:
    """Of rounds, agents and accuracies."""
    whole: list[list[float]] = [[number, agent, *[0] * (len(METRICS) - 2)] for number, agent, _ in rows]
    for row, (_, _, accuracy) in zip(whole, rows, strict=True):
        row[METRICS.index("test_accuracy")] = accuracy
        row[METRICS.index("seconds")] = 2
    append_rows(folder / "metrics.csv", METRICS, whole)
    return curves_of(read_table(folder / "metrics.csv", agents=agents))


def test_evaluations_become_a_table_of_rounds_by_agents(tmp_path: Path) -> None:
    curves = curves_from(tmp_path, (10, 0, 0.5), (10, 1, 0.7), (20, 0, 0.6), agents=2)
    assert curves.rounds.tolist() == [10, 20]
    assert curves.measures["test_accuracy"][0].tolist() == [0.5, 0.7]
    assert np.isnan(curves.measures["test_accuracy"][1, 1])  # agent 1 was not there
    assert curves.seconds.tolist() == [2, 2]


def test_the_spread_is_over_agents_that_are_known() -> None:
    over = spread(np.array([[0.0, 1.0, np.nan], [np.nan] * 3]))
    assert over["mean"] == [0.5, None]
    assert (over["min"], over["max"]) == ([0.0, None], [1.0, None])
    assert over["p10"][0] == pytest.approx(0.1)


def test_a_long_run_is_thinned_evenly_and_keeps_its_ends(tmp_path: Path) -> None:
    curves = curves_from(tmp_path, *((number, 0, 0.5) for number in range(1, 2001)), agents=1)
    assert len(curves.rounds) == POINTS
    assert (curves.rounds[0], curves.rounds[-1]) == (1, 2000)
    assert even_choice(3, 10) == [0, 1, 2]
    assert even_choice(0, 10) == []


def test_numbers_are_short_and_holes_are_none() -> None:
    assert rounded(np.array([1 / 3, np.nan])) == [0.33333, None]
