"""Which densities agents with different retentions agree on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peermask.masks.levels import Levels, level_of, levels_of

PAPER = (0.4, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1, 0.2, 0.4, 0.2, 0.4, 0.2, 0.3, 0.3, 0.4, 0.3, 0.1, 0.1, 0.3, 0.3)


@pytest.mark.parametrize(
    ("rule", "levels"),
    [("nested", (0.1, 0.2)), ("two", (0.1, 0.3)), ("smallest", (0.1,)), ("own", (0.1, 0.2, 0.3, 0.4))],
)
def test_levels_of_the_papers_retentions(rule: Levels, levels: tuple[float, ...]) -> None:
    """Fifteen of the twenty can carry 0.2, eleven 0.3, five 0.4."""
    assert levels_of(PAPER, rule) == levels


@pytest.mark.parametrize("rule", ["nested", "two", "smallest", "own"])
def test_equal_retentions_are_one_level(rule: Levels) -> None:
    assert levels_of((0.5,) * 7, rule) == (0.5,)


def test_nested_levels_fall_back_to_half() -> None:
    assert levels_of((0.1, 0.4), "nested") == (0.1, 0.4)
    assert levels_of((0.1, 0.1, 0.1, 0.4), "nested") == (0.1,)
    assert levels_of((0.1, 0.2, 0.3, 0.4), "nested") == (0.1, 0.2)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=30), st.sampled_from(["nested", "two", "smallest", "own"]))
def test_nobody_carries_more_than_it_can(retentions: list[float], rule: Levels) -> None:
    levels = levels_of(retentions, rule)
    assert all(level_of(retention, levels) <= retention for retention in retentions)
    assert 2 * sum(level_of(r, levels) == levels[-1] for r in retentions) >= len(retentions) or rule == "own"
