"""Differences between two rows of a table, paired by seed and agent, with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from peermask.paper.outcome import Outcome
from peermask.store.table import Floats
from peermask.streams import stream

DRAWS = 2000  # of the bootstrap
LEVEL = 0.95


class Difference(NamedTuple):
    mean: float
    low: float
    high: float


def paired_difference(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Difference | None:
    """Average d_si = a_si - b_si over the seeds s that both rows have and their agents i; None without a pair.

    An agent has the same data and neighbours in both rows. The interval resamples seeds, and in each of them agents.
    """
    others = {outcome.config.get("seed"): outcome.by_agent for outcome in theirs}
    pairs = [(outcome.by_agent, others.get(outcome.config.get("seed"))) for outcome in ours]
    gains = [a - b for a, b in pairs if a is not None and b is not None and len(a) == len(b)]
    if not gains or len({len(gain) for gain in gains}) > 1:
        return None
    low, high = bootstrap(np.array(gains))
    return Difference(float(np.mean(gains)), low, high)


def bootstrap(gains: Floats) -> tuple[float, float]:
    """Percentile interval of the mean of [S, N] over drawn seeds, and agents drawn within each."""
    seeds, agents = gains.shape
    draw = stream(0, "bootstrap")
    which = (draw.uniform(DRAWS * seeds) * seeds).astype(int).reshape(DRAWS, seeds, 1)
    who = (draw.uniform(DRAWS * seeds * agents) * agents).astype(int).reshape(DRAWS, seeds, agents)
    low, high = np.quantile(gains[which, who].mean((1, 2)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
