"""Runs and sweeps as tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from peermask.store.result import StoredRun
from peermask.store.sweeps import SweepFolder, best_rows, spread
from peermask.store.table import REPORTED, read_table
from peermask.task import FIGURES, figure_name, format_bytes, format_figure

LISTED = 200  # agents with their own row
UNEVEN = ("dirichlet", "shards", "quantity", "everything")  # partitions whose label frequencies deserve a column


def percent(share: float) -> str:
    return format_figure("density", share)


def label_of(result: StoredRun) -> str:
    """The algorithm, or in a comparison the folder's name, which tells two runs of one algorithm apart."""
    return result.folder.path.name if result.compared else result.algorithm


def arms_of(result: StoredRun) -> dict[str, StoredRun]:
    """All algorithms of a comparison, by the names of their folders; of a single run, that of its algorithm."""
    return {label_of(result): result, **{other.root.name: other for other in result.compared}}


def mean_density(result: StoredRun) -> float:
    return sum(agent.density for agent in result.agents) / len(result.agents)


def _worst(result: StoredRun, figure: str) -> float:
    """The lowest, or of an error the largest."""
    values = [agent.value(figure) for agent in result.agents if not agent.liar]
    return (max if figure == "mae" else min)((value for value in values if not isnan(value)), default=nan)


def agents_table(result: StoredRun) -> Table:
    """Make the table of a run: a row for each agent, then the mean, and the worst of each column of accuracies.

    Of other tasks than classification it has the figures of the task in place of labels and accuracies.
    """
    main = result.main_figure
    table = Table(
        title=f"{label_of(result)}: round {result.round} ({result.status})",
        title_justify="left",
        caption=f"{figure_name(main)}: mean over {REPORTED}",
        caption_justify="left",
    )
    others = [arm for arm in result.compared if len(arm.agents) == len(result.agents)]
    beside = {} if others else _beside(result)  # where there is room
    labelled, classes = result.task == "classification", result.manifest["classes"]
    holds = ["labels"] * labelled
    for heading in ("agent", *holds, "retention", "density", figure_name(main), *beside.values(), "sent"):
        if heading == "labels":  # the one column that may take several lines
            table.add_column(heading, min_width=len(heading))
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    for other in others:
        table.add_column(other.root.name, justify="right", style="dim", no_wrap=True)
    for row, agent in enumerate(result.agents[:LISTED]):
        table.add_row(
            str(agent.agent),
            *([" ".join(classes[label] for label in agent.labels)] * labelled),
            f"{agent.retention:g}",
            percent(agent.density),
            format_figure(main, agent.value(main)),
            *(format_figure(figure, agent.value(figure)) for figure in beside),
            format_bytes(agent.sent_bytes),
            *(format_figure(main, other.agents[row].value(main)) for other in others),
        )
    if len(result.agents) > LISTED:
        table.add_row("...", f"{len(result.agents) - LISTED:,} more, in metrics.csv")
    table.add_section()
    table.add_row(
        "mean",
        *([""] * labelled),
        "",
        percent(mean_density(result)),
        format_figure(main, result.mean(main)),
        *(format_figure(figure, result.mean(figure)) for figure in beside),
        format_bytes(result.sent_bytes / len(result.agents)),
        *(format_figure(main, other.mean(main)) for other in others),
        style="bold",
    )
    # The worst agent differs by column, so this row has nothing else about it.
    worst = [format_figure(figure, _worst(result, figure)) for figure in (main, *beside)]
    blank = [""] * (len(holds) + 2)
    table.add_row("worst", *blank, *worst, "", *(format_figure(main, _worst(other, main)) for other in others))
    return table


def _beside(result: StoredRun) -> dict[str, str]:
    """Figures with their own column, and its heading: those that differ from the accuracy that counts."""
    if result.task != "classification":
        return {figure: figure_name(figure) for figure in result.figures[1:]}
    other = _other(result)
    headings = {f"test_accuracy_{other}": f"{other}\nlabels"}
    if result.settings["partition"]["name"] in UNEVEN:
        headings["test_accuracy_weighted"] = "weighted"
    standard = FIGURES["classification"]
    return {figure: figure_name(figure) for figure in result.figures if figure not in standard} | {
        figure: heading
        for figure, heading in headings.items()
        if any(percent(getattr(a, figure)) not in ("-", percent(a.test_accuracy)) for a in result.agents)
    }


def _other(result: StoredRun) -> str:
    """The readout that does not count."""
    return "all" if result.readout == "own" else "own"


def _readouts(name: str, result: StoredRun) -> str:
    """The mean accuracy by either readout, and weighted."""
    other = _other(result)
    return (
        f"{name}: answers among {result.readout} labels {percent(result.mean_accuracy)}, "
        f"{other} labels {percent(result.mean(f'test_accuracy_{other}'))}, "
        f"weighted {percent(result.mean('test_accuracy_weighted'))}"
    )


def remedy(result: StoredRun) -> str:
    """What to change where collaboration lost."""
    changes = {
        "accord": "raise algorithm.personal_lr, lower algorithm.personal_pull",
        "mce-pl": "lower algorithm.aggregation_gain, try accord",
    }
    return changes.get(result.algorithm, "try accord, whose agents deploy a personal mask") + ", or learn alone"


def _lost(result: StoredRun, other: StoredRun, gain: float) -> list[str]:
    """Say what to change where agents that exchanged messages did worse than agents that did not."""
    if bool(result.sent_bytes) == bool(other.sent_bytes):
        return []
    together, alone = (result, other) if result.sent_bytes else (other, result)
    if (gain if together is result else -gain) >= 0:
        return []
    name = label_of(together) if together is result else together.root.name
    own = label_of(alone) if alone is result else alone.root.name
    return [f"collaboration lost here: {name} is behind {own}, which sends nothing; {remedy(together)}"]


def closing_lines(result: StoredRun) -> list[str]:
    """The result, in sentences."""
    lines = [_readouts(name, arm) for name, arm in arms_of(result).items() if not isnan(arm.mean_accuracy)]
    main = result.main_figure
    for other in result.compared:
        gain = result.mean(main) - other.mean(main)
        if isnan(gain):  # one of them diverged, or has no evaluation yet
            continue
        points = f"{gain:+z.3f} of" if main == "r2" else f"{100 * gain:+z.1f} points of"
        used = [percent(mean_density(arm)) for arm in (result, other)]
        with_more = f", with {used[0]} of the weights against {used[1]}" if used[0] != used[1] else ""
        lines.append(f"{label_of(result)} against {other.root.name}: {points} mean {figure_name(main)}{with_more}")
        lines += _lost(result, other, gain)
        if result.readout != other.readout:
            figures = ("test_accuracy_all", "test_accuracy_own")
            every, own = (f"{100 * (result.mean(each) - other.mean(each)):+z.1f}" for each in figures)
            lines.append(f"both with answers among all labels: {every} points; both among own: {own}")
    # As many as there were: a fleet's agents may have been away, or collected in part.
    messages = int(np.nansum(read_table(result.folder.traffic)["links"]))
    if result.sent_bytes and messages:
        each = result.sent_bytes / messages
        floats = 4 * result.manifest["parameters"]
        times = f", {floats / each:.0f} times as much" if floats > 1.5 * each else ""
        lines.append(f"a message: {format_bytes(each)}; the float32 model has {format_bytes(floats)}{times}")
        lines.append(f"{messages:,} messages, {format_bytes(result.sent_bytes)} in all")
    return lines


def sweep_table(sweep: SweepFolder) -> Table:
    """A row for each variation and algorithm. Values are folded where there is no room, never cut."""
    seeds = {row.seeds for row in sweep.rows}
    over = f"{min(seeds)} seed{'s' * (min(seeds) != 1)}" if len(seeds) == 1 else "seeds"
    table = Table(
        title=f"mean and standard deviation over {over}",
        title_justify="left",
        caption=f"held out, test: mean over {REPORTED}",
        caption_justify="left",
        box=SIMPLE_HEAD,  # three keys have room in 80 columns
        padding=(0, 1, 0, 0),
    )
    for heading in key_headings(sweep.keys):
        narrow = heading.replace("_", "_\n").replace(".", ".\n") if len(sweep.keys) > 2 else heading
        table.add_column(narrow, overflow="fold")
    table.add_column("algorithm", no_wrap=True)
    for heading in (*(["seeds"] * (len(seeds) > 1)), "held out", "test", "sent"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in sweep.rows:
        reached = [_format_spread(row.figure, spread(values)) for values in (row.validation, row.test)]
        sent = "-" if isnan(row.sent_bytes) else format_bytes(row.sent_bytes)
        count = [str(row.seeds)] if len(seeds) > 1 else []
        table.add_row(*row.values.values(), row.algorithm, *count, *(reached if row.seeds else ["diverged"] * 2), sent)
    return table


def key_headings(keys: Sequence[str]) -> list[str]:
    """The last part of each key, where that tells them apart."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 and name != "name" else key for key, name in zip(keys, last, strict=True)]


def sweep_lines(sweep: SweepFolder) -> list[str]:
    """Say what diverged, what was best, and what is missing."""
    lines = sweep.diverged()
    for row in best_rows(sweep.rows):
        reached = f"{format_figure(row.figure, spread(row.validation)[0])} on held-out data"
        lines.append(f"best for {row.algorithm}: {row.variation or 'as it is'}, {reached}")
    if sweep.rows and all(isnan(value) for row in sweep.rows for value in row.validation):
        lines.append("nothing is held out (data.validation = 0), so no best run is chosen")
    if sweep.missing:
        lines.append(
            f"{sweep.missing} of {len(sweep.runs)} runs are missing; resume with: peermask run --resume {sweep.root}"
        )
    return lines


def _format_spread(figure: str, values: tuple[float, float]) -> str:
    mean, deviation = values
    if isnan(mean) or isnan(deviation):
        return format_figure(figure, mean)
    return f"{mean:.3f} ± {deviation:.3f}" if figure == "r2" else f"{100 * mean:.1f} ± {100 * deviation:.1f} %"
