"""The curves of a run: what every agent reached at each evaluation, and their mean and spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peermask.engine.measures import FIGURES

Floats: TypeAlias = NDArray[np.float64]
Row: TypeAlias = dict[str, str]

LOSSES = ("test_loss", "validation_loss", "train_loss")
POINTS = 400  # evaluations drawn; more would not fit a screen's pixels
DIGITS = 5


@dataclass(frozen=True)
class Curves:
    """E evaluations of N agents; NaN where an agent was not there."""

    rounds: NDArray[np.int64]  # [E]
    seconds: Floats  # [E] since the start
    sent_bytes: Floats  # [E, N] so far
    measures: dict[str, Floats]  # [E, N] each


def measures_of(figures: Sequence[str]) -> tuple[str, ...]:
    """Columns that are drawn: every figure on test samples, the one that counts on held-out ones too, and losses."""
    return (*(f"test_{name}" for name in figures), f"validation_{figures[0]}", *LOSSES, "density")


def read_curves(rows: list[Row], agents: int, figures: Sequence[str] = FIGURES["classification"]) -> Curves:
    """From the rows of metrics.csv; of many evaluations an even choice, first and last among them."""
    every = sorted({int(row["round"]) for row in rows})
    rounds = [every[place] for place in even_choice(len(every), POINTS)]
    at = {number: place for place, number in enumerate(rounds)}
    columns = (*measures_of(figures), "sent_bytes", "seconds")
    values = {name: np.full((len(rounds), agents), np.nan) for name in columns}
    for row in rows:
        place, agent = at.get(int(row["round"])), int(row["agent"])
        if place is None or not 0 <= agent < agents:
            continue
        for name in columns:
            if row.get(name):
                values[name][place, agent] = float(row[name])
    seconds = _reduce(np.nanmax, values.pop("seconds"))
    return Curves(np.array(rounds, np.int64), seconds, values.pop("sent_bytes"), values)


def even_choice(count: int, most: int) -> list[int]:
    """At most so many of 0..count-1, evenly spaced, including the first and the last."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(most, count))})


def spread(values: Floats) -> dict[str, Any]:
    """Mean, range and middle four fifths over the last axis: [E, N] -> lists of E."""
    low, high = np.full(len(values), np.nan), np.full(len(values), np.nan)
    known = ~np.isnan(values).all(1)
    if known.any():
        low[known], high[known] = np.nanquantile(values[known], [0.1, 0.9], axis=1)
    return {
        "mean": rounded(_reduce(np.nanmean, values)),
        "min": rounded(_reduce(np.nanmin, values)),
        "max": rounded(_reduce(np.nanmax, values)),
        "p10": rounded(low),
        "p90": rounded(high),
    }


def rounded(values: Floats, digits: int = DIGITS) -> list[Any]:
    """Plain lists with few digits, and None for what is not known: small in JSON."""
    return [
        rounded(value, digits) if value.ndim else (None if np.isnan(value) else float(f"{value:.{digits}g}"))
        for value in values
    ]


def _reduce(function: Any, values: Floats) -> Floats:
    """Over agents, NaN where none is known (numpy would warn)."""
    result = np.full(len(values), np.nan)
    known = ~np.isnan(values).all(1) if values.size else np.zeros(len(values), bool)
    if known.any():
        result[known] = function(values[known], axis=1)
    return result
