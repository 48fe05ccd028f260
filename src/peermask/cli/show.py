"""`peermask show`: prints the table of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def show(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Print the results of a run, finished or not."""
    from peermask.experiment.manifest import is_of_fleet
    from peermask.experiment.result import RunResult
    from peermask.reports.tables import agents_table, closing_lines

    console = Console(markup=False)  # paths may hold brackets
    result = RunResult.open(run)
    console.print(agents_table(result))
    for line in closing_lines(result):
        console.print(line, soft_wrap=True, highlight=False)
    for name in result.waiting:
        console.print(f"{name} has not started", soft_wrap=True)
    if missing := result.manifest.get("missing_agents"):
        console.print(f"collected without agents {', '.join(map(str, missing))}", soft_wrap=True)
    elif result.waiting or any(arm.hash is None for arm in (result, *result.compared)):
        how = "peermask swarm FLEET" if is_of_fleet(run) else f"peermask run --resume {run}"
        console.print(f"not finished; resume with: {how}", soft_wrap=True)
    else:
        console.print(f"hash {result.hash}", soft_wrap=True, highlight=False)
