"""Curves, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from peermask.reports.curves import POINTS, even_choice, read_curves, rounded, spread


def row(number: int, agent: int, accuracy: float) -> dict[str, str]:
    return {
        "round": str(number),
        "agent": str(agent),
        "test_accuracy": str(accuracy),
        "sent_bytes": "8",
        "seconds": "2",
    }


def test_evaluations_become_a_table_of_rounds_by_agents() -> None:
    curves = read_curves([row(10, 0, 0.5), row(10, 1, 0.7), row(20, 0, 0.6)], agents=2)
    assert curves.rounds.tolist() == [10, 20]
    assert curves.measures["test_accuracy"][0].tolist() == [0.5, 0.7]
    assert np.isnan(curves.measures["test_accuracy"][1, 1])  # agent 1 was not there
    assert curves.seconds.tolist() == [2, 2]


def test_the_spread_is_over_agents_that_are_known() -> None:
    over = spread(np.array([[0.0, 1.0, np.nan], [np.nan] * 3]))
    assert over["mean"] == [0.5, None]
    assert (over["min"], over["max"]) == ([0.0, None], [1.0, None])
    assert over["p10"][0] == pytest.approx(0.1)


def test_a_long_run_is_thinned_evenly_and_keeps_its_ends() -> None:
    curves = read_curves([row(number, 0, 0.5) for number in range(1, 2001)], agents=1)
    assert len(curves.rounds) == POINTS
    assert (curves.rounds[0], curves.rounds[-1]) == (1, 2000)
    assert even_choice(3, 10) == [0, 1, 2]
    assert even_choice(0, 10) == []


def test_numbers_are_short_and_holes_are_none() -> None:
    assert rounded(np.array([1 / 3, np.nan])) == [0.33333, None]
