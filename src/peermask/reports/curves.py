"""The curves of a run: what agents reached, what they sent, and which were missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peermask.data.measures import FIGURES
from peermask.wire.frame import FRAME_BYTES

# The curves of a run: what every agent reached at each evaluation, and their mean and spread.

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


# Where the bytes of a run went, and what plainer ways of sending the same would have cost.


@dataclass
class Spent:
    """Bytes over all links of all agents."""

    messages: int = 0
    keyframes: int = 0  # bodies of messages that hold a whole mask or model
    deltas: int = 0  # bodies of messages that hold changes
    headers: int = 0
    bitmap: float = 0.0  # at 1 bit per weight
    floats: float = 0.0  # at 32 bits per weight
    per_agent: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # over one link
    per_message: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))  # by round

    @property
    def total(self) -> int:
        return self.keyframes + self.deltas + self.headers


def bytes_spent(rows: list[Row], weights: int) -> Spent:
    """From the rows of traffic.csv.

    Tables without a column `kind` count an agent's first mask as a keyframe, having nothing to differ from, and all
    later ones as deltas; messages with real values hold whole models.
    """
    spent = Spent()
    for row in rows:
        links, agent = int(row["links"]), int(row["agent"])
        if not links:  # no one received it
            continue
        size = float(row.get("coded_bytes") or row["bitmap_bytes"])
        body = int(links * max(0.0, size - FRAME_BYTES))
        is_mask = float(row["paper_bits"]) < 16 * weights  # real values take 32 bits each, masks 1
        is_delta = row["kind"].endswith("delta") if row.get("kind") else is_mask and agent in spent.per_agent
        if is_delta:
            spent.deltas += body
        else:
            spent.keyframes += body
        spent.messages += links
        spent.headers += int(links * min(size, FRAME_BYTES))
        spent.bitmap += links * weights / 8
        spent.floats += links * 4.0 * weights
        spent.per_agent[agent] += size
        spent.per_message[int(row["round"])].append(size)
    return spent


def message_curve(spent: Spent) -> tuple[list[int], list[float]]:
    """Rounds, and the mean bytes of a message in each; of many rounds an even choice."""
    rounds = sorted(spent.per_message)
    chosen = [rounds[place] for place in even_choice(len(rounds), POINTS)]
    return chosen, [round(sum(spent.per_message[r]) / len(spent.per_message[r]), 1) for r in chosen]


# Which agents were missing when, in a run over a real network.

MOST = 20_000  # rows a page can show


def faults_of(rows: list[Row]) -> dict[str, Any] | None:
    """From the rows of absences.csv, [round, agent, neighbour not heard, why]; None for a run without a network."""
    if not rows:
        return None
    reasons = sorted({row["why"] for row in rows})
    return {
        "count": len(rows),
        "reasons": [[why, sum(row["why"] == why for row in rows)] for why in reasons],
        "replaced": sum(bool(row["used"]) for row in rows),  # an older message took its place
        "rows": [
            [int(row["round"]), int(row["agent"]), int(row["neighbour"]), reasons.index(row["why"])]
            for row in rows[:MOST]
        ],
    }
