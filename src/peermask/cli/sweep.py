"""`peermask run --vary ... --seeds N`: many runs of one experiment, and a table of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from peermask.cli.interrupt import Interrupt

if TYPE_CHECKING:
    from peermask.experiment.sweep_table import Row


def sweep(
    config: Path | None,
    overrides: Sequence[str],
    vary: Sequence[str],
    seeds: Sequence[int] | None,
    out: Path | None,
    device: str,
    chunk: int | None,
    workers: int | None,
    imports: Sequence[str],
    *,
    quiet: bool,
) -> int:
    from peermask.engine.device import pick_device
    from peermask.experiment.execution import Execution
    from peermask.experiment.shown import shown
    from peermask.experiment.sweep import plan_sweep
    from peermask.experiment.sweep_table import best, spread, write_table

    console = Console(quiet=quiet, markup=False, highlight=False)
    pick_device(device)
    plan = plan_sweep(out, config, overrides, vary, seeds, imports)
    begun = time.monotonic()

    def tell(done: int, total: int, name: str) -> None:
        console.print(f"{time.monotonic() - begun:7.0f} s  {done:4d} of {total}  {name}", soft_wrap=True)

    with Interrupt() as interrupt:
        plan.run(Execution(device, chunk, workers, should_stop=interrupt.requested), tell)
    rows = plan.rows()
    if rows:
        console.print(_table(rows))
        console.print(write_table(plan.root, rows), soft_wrap=True)
    for line in plan.diverged:
        console.print(line, soft_wrap=True)
    chosen = best(rows)
    if chosen is not None:
        reached = f"{shown(chosen.figure, spread(chosen.validation)[0])} on held-out data"
        console.print(f"best: {chosen.variation or 'as it is'} with {chosen.algorithm}, {reached}", soft_wrap=True)
    elif rows:
        console.print("nothing is held out (data.validation = 0), so no best run is chosen")
    if plan.missing:
        console.print(
            f"{plan.missing} of {len(plan.cells)} runs are missing; rerun the same command to resume", soft_wrap=True
        )
    print(plan.root)
    return interrupt.exit_code if interrupt.requested() else 0


def _table(rows: Sequence[Row]) -> Table:
    from peermask.experiment.sweep_table import spread
    from peermask.reports.tables import bytes_human

    table = Table(title="mean and standard deviation over seeds", title_justify="left")
    table.add_column("variation")
    table.add_column("algorithm")
    for heading in ("seeds", "held out", "test", "sent"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        accuracies = (_shown(row.figure, *spread(row.validation)), _shown(row.figure, *spread(row.test)))
        table.add_row(
            row.variation or "as it is", row.algorithm, str(row.seeds), *accuracies, bytes_human(row.sent_bytes)
        )
    return table


def _shown(figure: str, mean: float, deviation: float) -> str:
    from peermask.experiment.shown import shown

    if isnan(mean) or figure == "r2":
        return shown(figure, mean) if isnan(deviation) else f"{mean:.3f} ± {deviation:.3f}"
    return f"{100 * mean:.1f} %" if isnan(deviation) else f"{100 * mean:.1f} ± {100 * deviation:.1f} %"
