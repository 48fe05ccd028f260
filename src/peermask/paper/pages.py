"""Pages of an output folder, from finished runs: tables, figures, configs, an index."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from itertools import combinations
from statistics import fmean

import numpy as np
import tomli_w

from peermask.errors import ConfigError
from peermask.files import write_atomically, write_json, writing
from peermask.paper.campaign import Campaign
from peermask.paper.cells import Cell
from peermask.paper.figures import PAPER_AGENTS, draw, layer_names
from peermask.paper.outcome import Outcome, Summary
from peermask.paper.preset import preset, preset_names
from peermask.paper.tables import Grid, format_mean, format_number, format_page, make_grid, markdown_table
from peermask.reports.mask_pictures import overlaps

PAPER_COUNTS = {"MCE-PL": 7, "ind-mask": 3}  # live filters the paper reads off its figure for agent 4


def further_tables(campaign: Campaign, name: str) -> str:
    """Further tables of the experiments about masks and curves, for the end of their pages; empty for all others."""
    match preset(name).figure:
        case "rounds" | "agents":
            return _swings(campaign, name)
        case "filters":
            return _by_layer(campaign, name)
        case "masks":
            return _by_layer(campaign, name) + _by_agent(campaign, name) + _alike(campaign, name)
        case _:
            return ""


def _swings(campaign: Campaign, name: str) -> str:
    """How much accuracy oscillates."""
    lines = []
    for index, row in enumerate(preset(name).rows):
        found = [swing for one in campaign.outcomes(name, index, 0) if (swing := one.swing) is not None]
        if found:
            lines.append(f"- {row.name}: {fmean(found):.3f}")
    title = "Swing: how much an agent's accuracy changes from one evaluation to the next, second half of the rounds:"
    return _section(title, lines) if lines else ""


def _by_layer(campaign: Campaign, name: str) -> str:
    rows = [(row.name, campaign.outcomes(name, index, 0)) for index, row in enumerate(preset(name).rows)]
    known = [(label, [o.filters for o in outcomes if o.filters]) for label, outcomes in rows]
    layers = next((list(filters[0]) for _, filters in known if filters), [])
    if not layers:
        return ""
    names = layer_names(next(o.config for _, outcomes in rows for o in outcomes), layers)
    means = [
        [label, *(f"{fmean(fmean(each[layer]) for each in filters):.1f}" for layer in layers)]
        for label, filters in known
        if filters
    ]
    return _section("Live filters, mean over agents and seeds:", markdown_table(["", *names], means))


def _by_agent(campaign: Campaign, name: str) -> str:
    counted = " and ".join(f"{count} ({method})" for method, count in PAPER_COUNTS.items())
    title = (
        "Live ones among the middle filters of the first layer, by agent (counted from 1), mean over seeds. "
        f"For agent 4 the paper counts {counted} of 20."
    )
    rows = []
    for index, row in enumerate(preset(name).rows):
        layers = [o.first_layer for o in campaign.outcomes(name, index, 0) if o.first_layer is not None]
        if not layers:
            return ""
        counts = [
            fmean(int(layer.middle(number - 1).any(axis=(1, 2, 3)).sum()) for layer in layers)
            for number in PAPER_AGENTS
        ]
        rows.append([row.name, *(f"{count:.1f}" for count in counts)])
    return _section(title, markdown_table(["", *(f"agent {number}" for number in PAPER_AGENTS)], rows))


def _alike(campaign: Campaign, name: str) -> str:
    lines = []
    for index, row in enumerate(preset(name).rows):
        shares = [share for one in campaign.outcomes(name, index, 0) if (share := mean_overlap(one)) is not None]
        if shares:
            lines.append(f"- {row.name}: {fmean(shares):.2f}")
    title = "How alike first-layer masks of agents with the same retention are (Jaccard index, mean over pairs):"
    return _section(title, lines) if lines else ""


def _section(title: str, lines: list[str]) -> str:
    return "\n".join(["", title, "", *lines]) + "\n"


def mean_overlap(outcome: Outcome) -> float | None:
    """Average |m_i ∧ m_j| / |m_i ∨ m_j| over pairs of agents with the same retention and any weight in the layer."""
    layer, retentions = outcome.first_layer, outcome.config["retention"]
    if layer is None or not isinstance(retentions, list):
        return None
    masks = np.stack([layer.mask(agent).flatten() for agent in range(len(layer.agents))])
    shares, used = overlaps(masks), [bool(mask.any()) for mask in masks]
    pairs = [(i, j) for i, j in combinations(range(len(masks)), 2) if retentions[i] == retentions[j]]
    known = [float(shares[i, j]) for i, j in pairs if used[i] or used[j]]
    return fmean(known) if known else None


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
    shown = [
        [method, setting, *(format_number(found.get(retention)) for retention in retentions)]
        for method, setting, found in rows
    ]
    table = markdown_table(["method", "", *map(str, retentions)], shown, left=2)
    return _section("Accuracy after the last round by retention, mean over agents and seeds:", table)


def by_retention(outcomes: list[Outcome]) -> dict[float, float]:
    """Retention -> mean accuracy of its agents after the last round."""
    reached: dict[float, list[float]] = defaultdict(list)
    for outcome in outcomes:
        retentions = outcome.config["retention"]
        if outcome.curve is not None and isinstance(retentions, list) and len(retentions) == len(outcome.curve.agents):
            for retention, accuracies in zip(retentions, outcome.curve.agents, strict=True):
                reached[retention].append(accuracies[-1])
    return {retention: fmean(values) for retention, values in reached.items()}


def write_pages(campaign: Campaign) -> list[str]:
    """Write the pages of all experiments; return what could not be done, one line each."""
    problems: list[str] = []
    for name in campaign.names:
        problems += _write_experiment(campaign, name)
        _write_configs(campaign, name)
    write_json(campaign.home.choices, campaign.tuning.record())
    _write(campaign, "README.md", _index(campaign))
    return list(dict.fromkeys(problems))


def _write_experiment(campaign: Campaign, name: str) -> list[str]:
    made, problems = make_grid(campaign, name), []
    try:
        pictures = draw(campaign, name)
    except ConfigError as error:
        pictures = {}
        problems.append(str(error))
    for file, content in pictures.items():
        write_atomically(campaign.home.path / file, content)
    figure = f"{name}.png" if f"{name}.png" in pictures else None
    text = format_page(campaign, made, figure) + retention_tables(campaign, name) + further_tables(campaign, name)
    _write(campaign, f"{name}.md", text)
    _write(campaign, f"{name}.tex", format_latex(made))
    _write(campaign, f"{name}.csv", format_csv(made))
    return problems


def _write_configs(campaign: Campaign, name: str) -> None:
    """Write one config a cell, with the first seed; the other seeds differ only in that line.

    Of a finished run it is what the run had: an earlier version may have had other defaults, and fewer options.
    """
    shape = preset(name)
    folder = campaign.home.path / "configs" / name
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for row in range(len(shape.rows)):
        for column in range(len(shape.columns)):
            cell = Cell(name, row, column, campaign.seeds[0])
            job, outcome = campaign.job(cell), campaign.outcome(cell)
            if job is not None:
                config = job.config.toml() if outcome is None else tomli_w.dumps(outcome.config)
                file = f"{_slug(shape.rows[row].name)}--{_slug(shape.columns[column].name)}.toml"
                text = f"# {shape.title}\n# seeds: {', '.join(map(str, campaign.seeds))}\n"
                write_atomically(folder / file, (text + config).encode())


def _index(campaign: Campaign) -> str:
    lines = [
        f"# Reproduction, scale `{campaign.defaults.name}`",
        "",
        f"{campaign.defaults.scale.about}. Made by `peermask reproduce`; what is not finished is shown as `-`.",
        "",
        "| experiment | runs finished | |",
        "| --- | ---: | --- |",
    ]
    for name in preset_names():
        if (campaign.home.path / f"{name}.md").is_file():
            cells = [cell for cell in campaign.cells if cell.experiment == name]
            done = sum(campaign.outcome(cell) is not None for cell in cells)
            count = f"{done} of {len(cells)}" if cells else "see there"
            lines.append(f"| [{name}]({name}.md) | {count} | {preset(name).title} |")
    for page in sorted(campaign.home.path.glob("*.md")):  # of the user's own experiments, from other calls
        if page.stem not in (*preset_names(), "README"):
            title = page.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
            lines.append(f"| [{page.stem}]({page.name}) | see there | {title} |")
    return "\n".join(lines) + "\n"


def _write(campaign: Campaign, file: str, text: str) -> None:
    write_atomically(campaign.home.path / file, text.encode())


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def format_latex(made: Grid) -> str:
    """A tabular with ours, also among own labels, the paper's figure and the difference under every column."""
    shape = made.preset
    has_paper = any(row.paper for row in shape.rows)
    parts = ["ours", *(["own labels"] if made.has_own else []), *(["paper", "diff."] if has_paper else [])]
    width = len(parts)
    lines = [
        f"% {shape.title}: {shape.about}",
        rf"\begin{{tabular}}{{l{('|' + 'r' * width) * len(shape.columns)}}}",
        r"\hline",
        " & ".join(["", *(rf"\multicolumn{{{width}}}{{c}}{{{_tex(column.name)}}}" for column in shape.columns)])
        + r" \\",
    ]
    if width > 1:
        lines.append(" & ".join(["", *(" & ".join(parts) for _ in shape.columns)]) + r" \\")
    lines.append(r"\hline")
    for entries in made.entries:
        cells = [_tex(entries[0].row)]
        for entry in entries:
            cells.append(_tex(format_mean(entry.summary)))
            if made.has_own:
                cells.append(_tex(format_number(entry.summary.own_labels)))
            if has_paper:
                cells += [_tex(format_number(entry.paper)), _tex(format_number(entry.difference, sign=True))]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def _tex(text: str) -> str:
    for plain, escaped in (("_", r"\_"), ("%", r"\%"), ("±", r"$\pm$"), ("−", "$-$")):
        text = text.replace(plain, escaped)
    return text


def format_csv(made: Grid) -> str:
    """One line a cell, with every figure."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    figures = tuple(Summary.model_fields)
    table.writerow(["experiment", "row", "column", *figures, "paper", "difference", "gain", "gain_low", "gain_high"])
    for entries in made.entries:
        for entry in entries:
            values = [getattr(entry.summary, name) for name in figures]
            shown = [_plain(value) for value in (*values, entry.paper, entry.difference, *(entry.gain or (None,) * 3))]
            table.writerow([made.name, entry.row, entry.column, *shown])
    return text.getvalue()


def _plain(value: float | int | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"
