"""`peermask report`: one page about one run or several."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several are compared.")],
    open_: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Output folder; the run's folder by default, or the current one for several runs."
        ),
    ] = None,
) -> None:
    """Write a page about runs: curves, graph, masks, bytes, config."""
    from peermask.reports.page import write_report

    path = write_report(runs, out)
    if open_:
        webbrowser.open(path.resolve().as_uri())
    print(path)
