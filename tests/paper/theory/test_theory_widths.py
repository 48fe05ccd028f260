"""The lemma's width, and the constant estimated from success rates."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peermask.paper.theory.measures import Distances, Overlap
from peermask.paper.theory.widths import (
    Success,
    Trial,
    decay_rate,
    estimate_constant,
    needed_width,
    promised,
    successes,
)


def trial(width: int, seed: int, error: float) -> Trial:
    seen, common = Distances(0, 0, 0, 0, 0, 0, 0), Overlap(1, 1, 1, 1, 1, 0.3, 0.1)
    return Trial(width, seed, (error, error / 2), seen, 0, (1, 1), common)


def test_width_worked_by_hand() -> None:
    assert needed_width(2.0, problems=100, eps=0.01, delta=0.1) == pytest.approx(2 * math.log(10_000))
    assert needed_width(2.0, problems=100, eps=0.1, delta=0.01) == pytest.approx(2 * math.log(10_000))


def test_the_promise_begins_where_the_width_suffices_for_eps() -> None:
    assert promised(10, 1.0, problems=100, eps=1e-6) == 0
    assert promised(10, 1.0, problems=100, eps=0.1) == pytest.approx(1 - 100 * math.exp(-10))


def test_success_counts_the_worse_of_two_agents() -> None:
    table = successes([trial(4, 0, 0.1), trial(4, 1, 0.01), trial(8, 0, 0.01), trial(8, 1, 0.001)], [0.05, 0.005])
    assert [(row.width, row.eps, row.rate) for row in table] == [
        (4, 0.05, 0.5),
        (8, 0.05, 1.0),
        (4, 0.005, 0.0),
        (8, 0.005, 0.5),
    ]


def test_wilsons_interval() -> None:
    low, high = Success(4, 0.1, 10, 10).interval
    assert (low, high) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert Success(4, 0.1, 0, 10).interval == pytest.approx((0.0, 0.2775), abs=1e-4)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(
        st.builds(
            lambda width, eps, good: Success(width, eps, good, 10),
            st.integers(1, 60),
            st.sampled_from([0.1, 0.01, 0.001]),
            st.integers(0, 10),
        ),
        min_size=1,
    )
)
def test_no_measurement_is_below_the_promise_of_the_estimate_and_one_is_of_any_smaller(rows: list[Success]) -> None:
    constant = estimate_constant(rows, problems=50)
    if constant == 0:
        assert all(row.rate == 1 for row in rows)
        return
    above, under = constant * (1 + 1e-9), constant * (1 - 1e-6)
    assert all(row.rate >= promised(row.width, above, 50, row.eps) - 1e-9 for row in rows)
    assert any(row.rate < promised(row.width, under, 50, row.eps) for row in rows)


def test_an_exponential_fall_is_recovered() -> None:
    trials = [trial(width, 0, 5 * math.exp(-0.3 * width)) for width in range(4, 40, 4)]
    assert decay_rate(trials, below=0.5) == pytest.approx(0.3)
    assert math.isnan(decay_rate(trials[:1], below=0.5))
