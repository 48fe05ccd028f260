"""The figures of experiments. One colour per method everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan, nan
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from peermask.paper.campaign import Campaign
from peermask.paper.drawing import blank, files_of, finish, lighter
from peermask.paper.outcome import FirstLayer, Outcome
from peermask.paper.preset import Figure as FigureKind
from peermask.paper.preset import Preset, methods, preset
from peermask.paper.tables import Grid, make_grid
from peermask.store.checkpoint import Masks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = ("-", "--", ":", "-.")  # for rows of the same method, and for print without colour
HATCHES = ("", "//", "..", "xx")  # likewise, of bars
PAPER_AGENTS = (2, 4, 8, 6)  # of the paper's figures of masks, counted from 1
ZOOMED = (4, 8)  # of equal retention, which the paper compares filter by filter


def draw(campaign: Campaign, name: str) -> dict[str, bytes]:
    """File name -> content; nothing where the experiment has no figure or none of its runs is finished."""
    shape = preset(name)
    runs = _finished(campaign, name)
    if shape.figure == "none" or not runs:
        return {}
    of_cells = {"columns": _by_columns, "bars": _as_bars}
    if shape.figure in of_cells:
        return files_of(name, of_cells[shape.figure](campaign, name))
    return files_of(name, _KINDS[shape.figure](shape, runs))


Runs = dict[int, list[Outcome]]  # row -> its finished seeds, in the column that is drawn


def _finished(campaign: Campaign, name: str) -> Runs:
    shape, found = preset(name), {}
    for row in range(len(shape.rows)):
        outcomes = campaign.outcomes(name, row, shape.drawn_column)
        if good := [outcome for outcome in outcomes if outcome.curve is not None]:
            found[row] = good
    return found


def _look(shape: Preset, row: int) -> dict[str, Any]:
    """The method's colour; rows of one method in one group differ by dashes."""
    rows = shape.rows
    kin = (rows[row].method, rows[row].group)
    same = [index for index, other in enumerate(rows) if (other.method, other.group) == kin]
    return {"color": methods()[rows[row].method].colour, "linestyle": STYLES[same.index(row) % len(STYLES)]}


def _legend_beside(figure: Figure, axes: Axes) -> None:
    """Put the legend of a panel outside of all panels, where it hides no curve."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=9)


def _by_rounds(shape: Preset, runs: Runs) -> Figure:
    figure, panels = blank(1, 1, (7.6, 4.4))
    _draw_runs(panels[0, 0], shape, runs, "rounds", "round")
    _legend_beside(figure, panels[0, 0])
    return figure


def _by_bytes(shape: Preset, runs: Runs) -> Figure:
    figure, panels = blank(1, 2, (11.2, 4.4))
    sent, counted = panels[0]
    for axes, count in ((sent, "megabytes"), (counted, "paper_megabytes")):
        axes.set_xscale("log")
        _draw_runs(axes, shape, runs, count, "sent by all agents over all links, MB")
    sent.set_title("as sent by the codec", fontsize=10)
    counted.set_title("as the paper counts: 1 bit per mask entry, 32 per real value", fontsize=10)
    _legend_beside(figure, sent)
    return figure


def _draw_runs(axes: Axes, shape: Preset, runs: Runs, x: str, label: str) -> None:
    for row, outcomes in runs.items():
        _curve_with_seeds(axes, outcomes, x, shape, row)
    finish(axes, label, "mean test accuracy")


def _by_link(shape: Preset, runs: Runs) -> Figure:
    """Accuracy against what a link has carried; a method that sends nothing is a line across."""
    figure, panels = blank(1, 1, (8.6, 4.6))
    axes: Axes = panels[0, 0]
    for row, outcomes in runs.items():
        if all(outcome.messages for outcome in outcomes):
            _curve_with_seeds(axes, outcomes, "megabytes", shape, row, a_link=True)
        else:
            reached = fmean(outcome.last for outcome in outcomes if outcome.last is not None)
            look = {**_look(shape, row), "linestyle": "--"}
            axes.axhline(reached, label=f"{shape.rows[row].name} (sends nothing)", linewidth=1.2, **look)
    axes.set_xscale("log")
    axes.set_title(shape.columns[shape.drawn_column].name, fontsize=10)
    own = all(outcome.config.get("readout") == "own" for outcomes in runs.values() for outcome in outcomes)
    finish(axes, "MB sent over a link, as the codec sends it", f"mean test accuracy{', own labels' if own else ''}")
    _legend_beside(figure, axes)
    return figure


def _by_columns(campaign: Campaign, name: str) -> Figure:
    """A panel per row, and in it a curve per column: accuracy against what all agents have sent."""
    rows, columns = preset(name).rows, preset(name).columns
    figure, panels = blank(1, len(rows), (4.8 * len(rows) + 1.6, 4.4))
    for axes in panels[0, 1:]:  # the same axes, or panels could not be compared
        axes.sharex(panels[0, 0])
        axes.sharey(panels[0, 0])
    for row, axes in enumerate(panels[0]):
        for place, column in enumerate(columns):
            curves = [found.curve for found in campaign.outcomes(name, row, place) if found.curve is not None]
            if curves:
                places = [fmean(values) for values in zip(*(curve.megabytes for curve in curves), strict=True)]
                reached = [fmean(values) for values in zip(*(curve.mean for curve in curves), strict=True)]
                axes.plot(places, reached, label=column.name, linewidth=1.6)
        axes.set_xscale("log")
        axes.tick_params(axis="x", which="minor", labelbottom=False)  # they would run into each other
        axes.set_title(rows[row].name, fontsize=10)
        finish(axes, "sent by all agents over all links, MB", "mean test accuracy")
    _legend_beside(figure, panels[0, 0])
    return figure


def _as_bars(campaign: Campaign, name: str) -> Figure:
    """A table as bars, a group per column: means and deviations over seeds, and the paper's figures as marks."""
    made = make_grid(campaign, name)
    if len(made.preset.columns) == 1:
        return _named_bars(made)
    figure, panels = blank(1, 1, (7.2, 4.4))
    axes, width = panels[0, 0], 0.8 / len(made.entries)
    for row, entries in enumerate(made.entries):
        places = [column + width * (row + 0.5) - 0.4 for column in range(len(entries))]
        means = [nan if entry.summary.mean is None else entry.summary.mean for entry in entries]
        errors = [entry.summary.deviation or 0.0 for entry in entries]
        look = _look(made.preset, row)
        hatch = HATCHES[STYLES.index(look["linestyle"])]
        axes.bar(
            *(places, means, width * 0.9),
            yerr=errors,
            label=entries[0].row,
            color=look["color"],
            hatch=hatch,
            ecolor="0.3",
        )
        papers = [nan if entry.paper is None else entry.paper for entry in entries]
        if not all(map(isnan, papers)):
            beside = [place + width * 0.27 for place in places]  # not over the deviation, in the middle of the bar
            axes.plot(beside, papers, "kD", markersize=5, markerfacecolor="white", label="_")
    axes.set_xticks(
        range(len(made.preset.columns)), [column.name.replace(", ", "\n") for column in made.preset.columns]
    )
    finish(axes, "", "mean test accuracy")
    if made.preset.paper_name:
        axes.plot([], [], "kD", markersize=5, markerfacecolor="white", label=f"the paper's {made.preset.paper_name}")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _named_bars(made: Grid) -> Figure:
    """A table of one column: a bar per row with its name beside it, since many rows have one method's colour."""
    entries = [row[0] for row in made.entries]
    means = [nan if entry.summary.mean is None else entry.summary.mean for entry in entries]
    errors = [entry.summary.deviation or 0.0 for entry in entries]
    colours = [methods()[row.method].colour for row in made.preset.rows]
    figure, panels = blank(1, 1, (7.2, 1.0 + 0.27 * len(entries)))
    axes: Axes = panels[0, 0]
    axes.barh([entry.row for entry in entries], means, 0.7, xerr=errors, color=colours, ecolor="0.3")
    axes.invert_yaxis()
    axes.set_title(entries[0].column, fontsize=10)
    finish(axes, "mean test accuracy", "")
    return figure


def _curve_with_seeds(
    axes: Axes, outcomes: list[Outcome], x: str, shape: Preset, row: int, *, a_link: bool = False
) -> None:
    """The median over seeds of accuracy over the curve's `x`, and thin lines for the seeds; bytes of all links, or of
    one."""
    curves = [outcome.curve for outcome in outcomes if outcome.curve is not None]
    shares = [outcome.messages_a_round or 1.0 if a_link else 1.0 for outcome in outcomes if outcome.curve is not None]
    each = list(zip(*(curve.mean for curve in curves), strict=True))
    scaled = [[value / share for value in getattr(curve, x)] for curve, share in zip(curves, shares, strict=True)]
    places = [fmean(values) for values in zip(*scaled, strict=True)]
    look, label = _look(shape, row), shape.rows[row].name + _stuck(outcomes)
    axes.plot(places, [median(values) for values in each], label=label, linewidth=1.6, **look)
    for seed in zip(*each, strict=True) if len(curves) > 1 else ():
        axes.plot(places, seed, color=look["color"], alpha=0.4, linewidth=0.6)


def _stuck(outcomes: list[Outcome]) -> str:
    """` (40 of 60 agents stuck)`, where a tenth or more are: their curve says nothing about the others."""
    stuck = sum(outcome.stuck or 0 for outcome in outcomes)
    agents = sum(len(outcome.curve.agents) for outcome in outcomes if outcome.curve is not None)
    return f"\n({stuck} of {agents} agents stuck)" if 10 * stuck >= agents else ""


def _by_agents(shape: Preset, runs: Runs) -> Figure:
    """A panel per agent and group of rows, first seed."""
    rows = shape.rows
    groups = list(dict.fromkeys(rows[row].group for row in runs))
    first = next(iter(runs.values()))[0]
    assert first.curve is not None
    agents = len(first.curve.agents)
    figure, panels = blank(len(groups), agents, (3.4 * agents, 3.2 * len(groups)))
    for line, group in enumerate(groups):
        for agent in range(agents):
            axes = panels[line, agent]
            for row, outcomes in runs.items():
                curve = outcomes[0].curve
                if rows[row].group == group and curve is not None:
                    label = rows[row].name.removesuffix(f", {group}")
                    look = _look(shape, row)  # a shade instead of dashes, which would be lost in such curves
                    shade = lighter(look["color"], 0.3 * STYLES.index(look["linestyle"]))
                    axes.plot(curve.rounds, curve.agents[agent], label=label, linewidth=1.2, color=shade)
            axes.set_title(f"agent {agent + 1}, {group}", fontsize=10)
            axes.set_ylim(0, 1)
            finish(axes, "step", "test accuracy")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _first_layer(shape: Preset, runs: Runs) -> Figure:
    """The middle filters of the first layer: inputs down, outputs across, a kernel in each square."""
    shown = [(row, outcomes[0].first_layer) for row, outcomes in runs.items() if outcomes[0].first_layer is not None]
    agents = [number for number in PAPER_AGENTS if all(number <= len(layer.agents) for _, layer in shown)]
    figure, panels = blank(len(shown) * len(agents), 2, (11.0, 1.3 * len(shown) * len(agents)), (9, 2))
    for place, (row, layer) in enumerate(shown):
        zoomed = _compared_filters(layer)
        for line, number in enumerate(agents):
            mask = layer.middle(number - 1)  # [O, I, h, w]
            axes = panels[place * len(agents) + line, 0]
            _tiles(axes, mask)
            beside = panels[place * len(agents) + line, 1]
            if zoomed and number in ZOOMED:  # the same filters, larger, to compare agents of the same retention
                _tiles(beside, mask[zoomed])
                beside.set_title(f"filters {' and '.join(str(k + 1) for k in zoomed)}", fontsize=9, loc="left")
            else:
                beside.set_axis_off()
            alive = int(mask.any(axis=(1, 2, 3)).sum())
            axes.set_title(
                f"{shape.rows[row].name}, agent {number}: {alive} of {len(mask)} filters alive",
                fontsize=9,
                loc="left",
            )
    return figure


def _compared_filters(layer: FirstLayer) -> list[int]:
    """Two of the middle filters that the zoomed agents keep, those that most of them keep first."""
    if max(ZOOMED) > len(layer.agents):
        return []
    alive = np.sum([layer.middle(number - 1).any(axis=(1, 2, 3)) for number in ZOOMED], axis=0)  # [O]
    return sorted(np.argsort(-alive, kind="stable")[:2].tolist())


def _tiles(axes: Axes, mask: Masks) -> None:
    """Draw filters [O, I, h, w] as squares, inputs down and outputs across."""
    filters, inputs, height, width = mask.shape
    axes.imshow(mask.transpose(1, 2, 0, 3).reshape(inputs * height, -1), cmap="Greys", aspect="auto")
    axes.set_xticks([width * k - 0.5 for k in range(filters + 1)], labels=[])
    axes.set_yticks([height * k - 0.5 for k in range(inputs + 1)], labels=[])
    axes.grid(True, color="#1f5fa8", linewidth=0.5)


def layer_names(config: dict[str, Any], layers: Sequence[str]) -> list[str]:
    """Layers by kind and number in the paper's network, by number in others."""
    if config.get("model", {}).get("name") == "alexnet":
        return ["conv 1", "conv 2", "conv 3", "linear 1", "linear 2"]
    return [f"layer {number}" for number in range(1, len(layers) + 1)]


def _live_filters(shape: Preset, runs: Runs) -> Figure:
    """Bars: how many filters have any weight, by layer."""
    shown = {row: outcomes for row, outcomes in runs.items() if outcomes[0].filters}
    layers = list(next(iter(shown.values()))[0].filters or {})
    figure, panels = blank(1, 1, (8.0, 4.4))
    axes: Axes = panels[0, 0]
    width = 0.8 / len(shown)
    for place, (row, outcomes) in enumerate(shown.items()):
        heights = [fmean(fmean((outcome.filters or {})[layer]) for outcome in outcomes) for layer in layers]
        method = shape.rows[row].method
        alike = [other for other in shown if shape.rows[other].method == method]
        axes.bar(
            [index + (place - (len(shown) - 1) / 2) * width for index in range(len(layers))],
            heights,
            width,
            label=shape.rows[row].name,
            color=methods()[method].colour,
            alpha=0.75,
            hatch=HATCHES[alike.index(row) % len(HATCHES)],
            edgecolor="white",
        )
    axes.set_xticks(range(len(layers)), labels=layer_names(next(iter(shown.values()))[0].config, layers))
    finish(axes, "", "filters with any weight, mean over agents")
    figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=4)
    return figure


_KINDS: dict[FigureKind, Callable[[Preset, Runs], Figure]] = {
    "rounds": _by_rounds,
    "bytes": _by_bytes,
    "bytes-a-link": _by_link,
    "agents": _by_agents,
    "masks": _first_layer,
    "filters": _live_filters,
}
