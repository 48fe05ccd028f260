"""Which agents were missing when, in a run over a real network."""

from __future__ import annotations

from typing import Any

from peermask.reports.curves import Row

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
