"""Filters in numbers: how many are alive in every layer, and in the part of the first that the paper shows."""

from __future__ import annotations

from statistics import fmean

from peermask.reproduce.campaign import Campaign
from peermask.reproduce.figures import PAPER_AGENTS
from peermask.reproduce.preset import preset

PAPER_COUNTS = {"MCE-PL": 7, "ind-mask": 3}  # live filters the paper reads off its figure for agent 4


def filter_tables(campaign: Campaign, name: str) -> str:
    """Further tables of the experiments about masks, for the end of their pages; empty for all others."""
    match preset(name).figure:
        case "filters":
            return _by_layer(campaign, name)
        case "masks":
            return _by_layer(campaign, name) + _by_agent(campaign, name)
        case _:
            return ""


def _by_layer(campaign: Campaign, name: str) -> str:
    rows = [(row.name, campaign.outcomes(name, index, 0)) for index, row in enumerate(preset(name).rows)]
    known = [(label, [o.filters for o in outcomes if o.filters]) for label, outcomes in rows]
    layers = next((list(filters[0]) for _, filters in known if filters), [])
    if not layers:
        return ""
    lines = ["", "Live filters, mean over agents and seeds:", "", f"| | {' | '.join(layers)} |"]
    lines.append(f"| --- |{' ---: |' * len(layers)}")
    for label, filters in known:
        if filters:
            means = [f"{fmean(fmean(each[layer]) for each in filters):.1f}" for layer in layers]
            lines.append(f"| {label} | {' | '.join(means)} |")
    return "\n".join(lines) + "\n"


def _by_agent(campaign: Campaign, name: str) -> str:
    lines = [
        "",
        "Live ones among the middle filters of the first layer, by agent (counted from 1), mean over seeds. "
        "For agent 4 the paper counts "
        + " and ".join(f"{count} ({method})" for method, count in PAPER_COUNTS.items())
        + " of 20.",
        "",
        f"| | {' | '.join(f'agent {number}' for number in PAPER_AGENTS)} |",
        f"| --- |{' ---: |' * len(PAPER_AGENTS)}",
    ]
    for index, row in enumerate(preset(name).rows):
        layers = [o.first_layer for o in campaign.outcomes(name, index, 0) if o.first_layer is not None]
        if not layers:
            return ""
        counts = [
            fmean(int(layer.middle(number - 1).any(axis=(1, 2, 3)).sum()) for layer in layers)
            for number in PAPER_AGENTS
        ]
        lines.append(f"| {row.name} | {' | '.join(f'{count:.1f}' for count in counts)} |")
    return "\n".join(lines) + "\n"
