"""`peermask reproduce` and `peermask theory`: the paper's tables, figures and theorem."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from peermask.cli.options import Device, Import, Interrupt, parse_seeds, print_progress

if TYPE_CHECKING:
    from peermask.paper.tables import Grid

FILE_WIDTH = 200  # columns of a table where output is no terminal

# `peermask reproduce`: the paper's tables and figures, made again.


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME...|all]",
            help="Experiments, run in this order; by default all (see --list); NAME.toml is your own.",
        ),
    ] = None,
    scale: Annotated[str, typer.Option(help="paper (CIFAR-10, a GPU) or quick (digits, minutes on a CPU).")] = "paper",
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N|LIST", help="Number of seeds, or a list: 3, or 0,1,2. Default: 3 for paper, 2 for quick."
        ),
    ] = None,
    device: Device = "auto",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the dataset; found or downloaded by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder; reproduce-SCALE by default.")] = None,
    released: Annotated[
        Path | None,
        typer.Option(help="Copy of the authors' repository: also use its graph and labels, in further columns."),
    ] = None,
    tables_only: Annotated[
        bool, typer.Option("--tables-only", help="Write tables of finished runs; run nothing.")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, help="Number of processes that share the runs.")] = 1,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop after this time; the same command goes on later.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    import_: Import = None,
) -> int:
    """Run the paper's experiments and write their tables and figures."""
    from peermask.paper.pages import write_pages
    from peermask.paper.request import Request
    from peermask.paper.tables import make_grid, note_of
    from peermask.plugins import load_plugins
    from peermask.run.jobs import Stopped

    begun = time.monotonic()
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else FILE_WIDTH)
    if list_:
        load_plugins(import_ or ())
        _print_list(console)
        return 0
    chosen = None if seeds is None else tuple(parse_seeds(seeds))
    imports = tuple(import_ or ())
    request = Request(tuple(names or ["all"]), scale, chosen, device, data_dir, out, released, imports, processes)
    with Interrupt() as interrupt:

        def should_stop() -> bool:
            return interrupt.requested() or (minutes is not None and time.monotonic() - begun > 60 * minutes)

        campaign = request.campaign(should_stop, tables_only=tables_only)
        try:
            if not tables_only:
                request.run(campaign, print_progress(console))
        except Stopped:
            pass
        finally:
            problems = write_pages(campaign)
            campaign.home.fold()
    for name in campaign.names:
        made = make_grid(campaign, name)
        _print_table(console, made, note_of(campaign, made.preset), with_paper=request.size == "paper")
    for problem in problems:
        console.print(problem, soft_wrap=True)
    if missing := campaign.missing():
        how = "run without --tables-only to compute them" if tables_only else "rerun the same command to resume"
        console.print(f"{missing} of {len(campaign.cells)} cells are missing; {how}", soft_wrap=True)
    print(campaign.home.path)
    return interrupt.exit_code if interrupt.requested() else 0


def _print_table(console: Console, made: Grid, note: str, *, with_paper: bool) -> None:
    """Print accuracies, and below each the paper's where it is of the same data; nothing before a run has finished."""
    from peermask.paper.tables import format_mean, format_number

    if not any(entry.summary.seeds or entry.summary.diverged for entries in made.entries for entry in entries):
        return
    table = Table(title=f"{made.preset.title} (accuracy)", title_justify="left")
    table.add_column("")
    for column in made.preset.columns:
        table.add_column(column.name, justify="right")
    for entries in made.entries:
        papers = [f"\n(paper {format_number(entry.paper)})" if with_paper and entry.paper else "" for entry in entries]
        cells = (format_mean(entry.summary) + paper for entry, paper in zip(entries, papers, strict=True))
        table.add_row(entries[0].row, *cells)
    console.print(table)
    if note:
        console.print(note, soft_wrap=True)


def _print_list(console: Console) -> None:
    from peermask.paper.preset import NAMES, preset, scales

    for name in NAMES:
        shape = preset(name)
        count = len(shape.rows) * len(shape.columns)
        console.print(Text(name, style="cyan"), f" {shape.title} ({count} cells a seed)", soft_wrap=True)
        console.print(f"    {shape.about}", soft_wrap=True)
    for name, scale in scales().items():
        console.print(Text(f"--scale {name}", style="cyan"), f" {scale.about}", soft_wrap=True)


def theory(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer draws and widths: under a minute.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the report and its figures; theory/ by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of targets and random networks.")] = 0,
) -> None:
    """Build the masks of the paper's theorem and measure its bounds."""
    from peermask.paper.theory.report import print_tables, theory_report
    from peermask.paper.theory.study import FULL, QUICK

    console, errors = Console(markup=False), Console(stderr=True)
    folder = out or Path("theory")
    with errors.status("starting") as status:
        study = theory_report(folder, QUICK if quick else FULL, seed, lambda step: status.update(step))
    print_tables(study, console)
    console.print(f"report and figures in {folder}", soft_wrap=True, highlight=False)
