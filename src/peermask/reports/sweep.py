"""A sweep as a table on a terminal, and as data of a page."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from peermask.store.sweeps import SweepFolder, best_rows, spread
from peermask.store.table import REPORTED
from peermask.task import format_bytes, format_figure


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
    for heading in headings(sweep.keys):
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


def headings(keys: Sequence[str]) -> list[str]:
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


def sweep_data(sweep: SweepFolder, series: Sequence[Sequence[Path]]) -> dict[str, Any]:
    """The data of a page's section on the sweep; `series` are the run folders of each curve on the page."""
    rows = sweep.rows
    best = best_rows(rows)
    first = sweep.root / best[0].runs[0].path if best else None
    return {
        "keys": list(sweep.keys),
        "figure": rows[0].figure if rows else "accuracy",
        "rows": [
            {
                "values": row.values,
                "variation": row.variation,
                "algorithm": row.algorithm,
                "place": row.runs[0].place,
                "seeds": row.seeds,
                "diverged": row.diverged,
                "validation": _known(spread(row.validation)),
                "test": _known(spread(row.test)),
                "sent": None if isnan(row.sent_bytes) else row.sent_bytes,
                "best": row in best,
            }
            for row in rows
        ],
        "missing": sweep.missing,
        "top": next((place for place, paths in enumerate(series) if first in paths), 0),  # the curve of the best
    }


def _known(values: Sequence[float]) -> list[float | None]:
    return [None if isnan(value) else value for value in values]
