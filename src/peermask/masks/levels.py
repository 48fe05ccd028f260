"""Levels: the few densities at which agents with different retentions learn together.

Masks of different densities pull each other apart: a weight that a sparse network cannot do without is of no use in a
dense one, and to compare like with like does not help (docs/collaboration.md). So agents agree on a few levels that
follow only from the retentions of all agents, and listen at each level to those on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Levels = Literal["nested", "two", "smallest", "own"]


def levels_of(retentions: Sequence[float], rule: Levels) -> tuple[float, ...]:
    """The densities of a fleet, lowest first.

    nested    the smallest retention, at which all learn, and above it the largest that three quarters of the agents can
              carry, at which those who can learn a second mask; half of them, if three quarters carry no more than all
    two       the smallest, and the largest that half of the agents can carry; each learns at one of them
    smallest  one for all: what every agent can carry
    own       every retention that occurs
    """
    ranked = sorted(retentions, reverse=True)
    lowest, half = ranked[-1], ranked[(len(ranked) - 1) // 2]
    if rule == "own":
        return tuple(sorted(set(ranked)))
    if rule == "smallest":
        return (lowest,)
    if rule == "two":
        return tuple(sorted({lowest, half}))
    most = ranked[-(-3 * len(ranked) // 4) - 1]
    return tuple(sorted({lowest, most if most > lowest else half}))


def level_of(retention: float, levels: Sequence[float]) -> float:
    """The highest that fits; the lowest where a retention is below all of them, which only a stranger's can be."""
    return max((level for level in levels if level <= retention), default=levels[0])
