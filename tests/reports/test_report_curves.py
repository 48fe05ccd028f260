"""Curves, bytes, and who was missing, worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from peermask.reports.source import (
    POINTS,
    Curves,
    Spent,
    bytes_spent,
    curves_of,
    even_choice,
    faults_of,
    rounded,
    spread,
)
from peermask.run.metrics import METRICS
from peermask.store.table import append_rows, read_table
from peermask.wire.frame import FRAME_BYTES


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


COLUMNS = ("round", "agent", "links", "coded_bytes", "kind")


@pytest.fixture
def spend(tmp_path: Path) -> Callable[..., Spent]:
    def spend(*rows: tuple[int, int, int, int, str], weights: int) -> Spent:
        append_rows(tmp_path / "traffic.csv", COLUMNS, rows)
        return bytes_spent(read_table(tmp_path / "traffic.csv"), weights)

    return spend


def test_whole_messages_changes_and_headers_are_counted_apart(spend: Callable[..., Spent]) -> None:
    rows = (1, 0, 2, 100, "keyframe"), (2, 0, 2, 50, "delta"), (2, 1, 2, 80, "keyframe"), (3, 1, 0, 90, "delta")
    spent = spend(*rows, weights=800)  # the last was received by no one
    assert spent.messages == 6
    assert spent.headers == 6 * FRAME_BYTES
    assert spent.keyframes == 2 * (100 - FRAME_BYTES) + 2 * (80 - FRAME_BYTES)
    assert spent.deltas == 2 * (50 - FRAME_BYTES)
    assert spent.total == 2 * (100 + 50 + 80)
    assert spent.bitmap == 6 * 100
    assert spent.floats == 6 * 3200
    assert spent.per_agent.tolist() == [150, 80]


def test_the_mean_message_of_each_round(spend: Callable[..., Spent]) -> None:
    rows = (1, 0, 2, 100, "keyframe"), (1, 1, 2, 50, "keyframe"), (3, 0, 2, 10, "delta"), (4, 0, 0, 10, "delta")
    spent = spend(*rows, weights=8)
    assert (spent.rounds, spent.per_message) == ([1, 3], [75.0, 10.0])


def test_nothing_sent_is_nothing_spent(spend: Callable[..., Spent]) -> None:
    spent = spend(weights=8)
    assert (spent.messages, spent.total, spent.rounds) == (0, 0, [])


def test_faults_say_who_was_missing_and_what_was_done() -> None:
    missing = [
        {"round": "3", "agent": "0", "neighbour": "1", "why": "gone", "used": ""},
        {"round": "4", "agent": "2", "neighbour": "1", "why": "silent", "used": "3"},
    ]
    found = faults_of(missing)
    assert found is not None
    assert found["rows"] == [[3, 0, 1, 0], [4, 2, 1, 1]]
    assert (found["count"], found["replaced"]) == (2, 1)
    assert found["reasons"] == [["gone", 1], ["silent", 1]]
    assert faults_of([]) is None
