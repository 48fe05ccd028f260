"""Levels: the few densities at which agents with different retentions learn together.

Masks of different densities pull each other apart: a weight that a sparse network cannot do without is of no use in a
dense one, and to compare like with like does not help (docs/collaboration.md). So agents agree on a few levels that
follow from everybody's retentions alone. Each keeps as much as the highest level it can carry allows, and listens to
those on the same level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Levels = Literal["nested", "two", "smallest", "own"]


def levels_of(retentions: Sequence[float], rule: Levels) -> tuple[float, ...]:
    """The densities of a fleet, lowest first.

    two       the smallest retention, and the largest that at least half of the agents can carry
    smallest  one for all: what everybody can carry
    own       every retention that occurs
    """
    ranked = sorted(retentions, reverse=True)
    if rule == "own":
        return tuple(sorted(set(ranked)))
    if rule == "smallest":
        return (ranked[-1],)
    return tuple(sorted({ranked[-1], ranked[(len(ranked) - 1) // 2]}))


def level_of(retention: float, levels: Sequence[float]) -> float:
    """The highest that fits; the lowest where a retention is below all of them, which only a stranger's can be."""
    return max((level for level in levels if level <= retention), default=levels[0])
