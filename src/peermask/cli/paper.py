"""`peermask reproduce` and `peermask theory`: the paper's tables, figures and theorem."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from peermask.cli.options import Device, Import, Interrupt, parse_seeds, print_progress
from peermask.errors import ConfigError, nearest

if TYPE_CHECKING:
    from peermask.paper.preset import ScaleName
    from peermask.paper.tables import Grid

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
    from peermask.compute.device import pick_device
    from peermask.paper.campaign import Campaign, read_data
    from peermask.paper.cells import Defaults, add_released
    from peermask.paper.output_folder import OutputFolder
    from peermask.paper.pages import write_pages
    from peermask.paper.preset import scales, selected
    from peermask.paper.tables import make_grid, note_of
    from peermask.plugins import find_plugins, load_plugins
    from peermask.run.execution import Execution
    from peermask.run.jobs import Stopped

    begun, given = time.monotonic(), names or ["all"]
    plugins = load_plugins(import_ or ())
    console = Console(highlight=False, markup=False)
    if list_:
        _print_list(console)
        return 0
    wanted, size = selected(tuple(given)), _scale(scale)
    first = wanted[: given.index("all")] if "all" in given else wanted
    if released is not None:
        add_released(wanted, released)
    chosen = None if seeds is None else parse_seeds(seeds)
    home = OutputFolder(out or Path(f"reproduce-{size}"))
    home.check_plugins(plugins)
    imports = dict.fromkeys((*find_plugins(home.plugins(), str(home.path)), *(one.name for one in plugins)))
    with Interrupt() as interrupt:

        def should_stop() -> bool:
            return interrupt.requested() or (minutes is not None and time.monotonic() - begun > 60 * minutes)

        execution = Execution(device, should_stop=should_stop, final_checkpoint=False)
        dataset = None
        if tables_only:
            home.look(size)
        else:
            pick_device(device)
            dataset = read_data(size, wanted, None if data_dir is None else str(data_dir))
            home.open(size, dataset, chosen[0] if chosen else 0, plugins)
        defaults = Defaults(size, scales()[size], tuple(imports))
        run_seeds = tuple(chosen or range(defaults.scale.seeds))
        campaign = Campaign(defaults, home, dataset, wanted, run_seeds, execution, first)
        shared = {
            "scale": size,
            "device": device,
            "data-dir": data_dir,
            "out": home.path,
            "released": released,
            "seeds": seeds,
            "minutes": minutes,
        }
        try:
            if not tables_only:
                with _others(processes - 1, [*given, *_as_words(shared, import_ or ())]):
                    campaign.run(print_progress(console))
        except Stopped:
            pass
        finally:
            problems = write_pages(campaign)
            home.fold()
    for name in campaign.names:
        made = make_grid(campaign, name)
        _print_table(console, made, note_of(campaign, made.preset), with_paper=size == "paper")
    for problem in problems:
        console.print(problem, soft_wrap=True)
    if missing := campaign.missing():
        how = "run without --tables-only to compute them" if tables_only else "rerun the same command to resume"
        console.print(f"{missing} of {len(campaign.cells)} cells are missing; {how}", soft_wrap=True)
    print(home.path)
    return interrupt.exit_code if interrupt.requested() else 0


def _as_words(options: Mapping[str, object], imports: Sequence[str]) -> list[str]:
    words = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return [*words, *(f"--import={plugin}" for plugin in imports)]


@contextmanager
def _others(count: int, arguments: Sequence[str]) -> Iterator[None]:
    """Start as many other processes on the same folder, which stop with this one."""
    command = [sys.executable, "-m", "peermask", "reproduce", *arguments]
    others = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    except BaseException:
        for other in others:
            other.terminate()
        raise
    finally:
        for other in others:
            other.wait()


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


def _scale(name: str) -> ScaleName:
    from peermask.paper.preset import scales

    if name not in scales():
        raise ConfigError(f"unknown scale {name!r}; {nearest(name, scales())}")
    return "paper" if name == "paper" else "quick"


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
