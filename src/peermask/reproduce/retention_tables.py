"""The results of agents by retention, for experiments with several."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean

from peermask.reproduce.campaign import Campaign
from peermask.reproduce.outcome import Outcome
from peermask.reproduce.preset import preset
from peermask.reproduce.tables import MISSING, line, number


def retention_tables(campaign: Campaign, name: str) -> str:
    """A Markdown table, or nothing where all agents of an experiment have the same retention."""
    shape = preset(name)
    rows: list[tuple[str, str, dict[float, float]]] = []
    for place, row in enumerate(shape.rows):
        for at, column in enumerate(shape.columns):
            found = by_retention(campaign.outcomes(name, place, at))
            if len(found) > 1:
                rows.append((row.name, column.name, found))
    if not rows:
        return ""
    retentions = sorted({retention for _, _, found in rows for retention in found})
    lines = [
        "",
        "Accuracy after the last round by retention, mean over agents and seeds:",
        "",
        line(["method", "", *map(str, retentions)]),
        line(["---", "---", *("---:" for _ in retentions)]),
    ]
    for method, setting, found in rows:
        shown = [number(found[retention]) if retention in found else MISSING for retention in retentions]
        lines.append(line([method, setting, *shown]))
    return "\n".join(lines) + "\n"


def by_retention(outcomes: list[Outcome]) -> dict[float, float]:
    """Retention -> mean accuracy of its agents after the last round."""
    reached: dict[float, list[float]] = defaultdict(list)
    for outcome in outcomes:
        retentions = outcome.config["retention"]
        if outcome.curve is not None and isinstance(retentions, list) and len(retentions) == len(outcome.curve.agents):
            for retention, accuracies in zip(retentions, outcome.curve.agents, strict=True):
                reached[retention].append(accuracies[-1])
    return {retention: fmean(values) for retention, values in reached.items()}
