"""`peermask theory`: the theorem behind the method, constructed and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def theory(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer draws and widths: under a minute.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the report and its figures; theory/ by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of targets and random networks.")] = 0,
) -> None:
    """Build the masks of the paper's theorem and measure its bounds."""
    from peermask.theory.report import print_tables, theory_report
    from peermask.theory.study import FULL, QUICK

    console, errors = Console(markup=False), Console(stderr=True)
    folder = out or Path("theory")
    with errors.status("starting") as status:
        study = theory_report(folder, QUICK if quick else FULL, seed, lambda step: status.update(step))
    print_tables(study, console)
    console.print(f"report and figures in {folder}", soft_wrap=True, highlight=False)
