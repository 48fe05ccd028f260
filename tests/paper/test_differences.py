"""Differences paired by seed and agent."""

from __future__ import annotations

import numpy as np
import pytest

from peermask.paper.outcome import Curve, Outcome
from peermask.paper.tables import DRAWS, bootstrap, paired_difference


def outcome(seed: int, *agents: float) -> Outcome:
    curve = Curve(rounds=[8], agents=[[accuracy] for accuracy in agents], megabytes=[0], paper_megabytes=[0])
    return Outcome(config={"seed": seed}, curve=curve)


def test_agents_are_compared_with_themselves() -> None:
    """Seed 0: +0.1 and +0.3; seed 1: -0.1 and +0.1; seed 2 has no partner, seed 3 diverged. The mean is 0.1."""
    ours = [outcome(0, 0.6, 0.9), outcome(1, 0.5, 0.6), outcome(2, 1.0, 1.0), outcome(3, 0.5, 0.5)]
    theirs = [outcome(1, 0.6, 0.5), outcome(0, 0.5, 0.6), Outcome(config={"seed": 3}, diverged="nan")]
    found = paired_difference(ours, theirs)
    assert found is not None
    assert found.mean == pytest.approx(0.1)
    assert -0.1 <= found.low < found.mean < found.high <= 0.3 + 1e-12
    assert found == paired_difference(ours, theirs)  # the same draws every time
    assert paired_difference(ours, []) is None


def test_an_interval_worked_by_hand() -> None:
    """One seed, agents 0 and 1: means 0, 1/2 and 1 have probabilities 1/4, 1/2 and 1/4, so 2.5 % and 97.5 % are 0, 1.
    Equal differences leave nothing to resample. Agents of two seeds that agree within each: only seeds are drawn."""
    assert bootstrap(np.array([[0.0, 1.0]])) == (0.0, 1.0)
    assert bootstrap(np.full((3, 20), 0.25)) == (0.25, 0.25)
    assert bootstrap(np.array([[0.0] * 5, [1.0] * 5])) == (0.0, 1.0)


def test_as_many_agents_as_in_a_table_give_the_normal_interval() -> None:
    """One seed, 400 agents at 0 or 1: the mean's deviation is 0.5 / 20, and 1.96 of it is 0.049."""
    low, high = bootstrap(np.array([[0.0, 1.0] * 200]))
    assert (low, high) == (pytest.approx(0.451, abs=0.004), pytest.approx(0.549, abs=0.004))
    assert DRAWS >= 1000
