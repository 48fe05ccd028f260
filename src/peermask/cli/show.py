"""`peermask show`, `report`, `watch` and `runs`: what runs reached."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from peermask.cli.options import print_result
from peermask.cli.run import print_sweep
from peermask.errors import RunError
from peermask.files import read_json
from peermask.task import figure_name, format_bytes, format_figure

if TYPE_CHECKING:
    from peermask.store.runs import FoundRun


def show(run: Annotated[Path, typer.Argument(help="A run folder, or a sweep's.")]) -> None:
    """Print the results of a run or sweep, finished or not."""
    from peermask.reports.tables import arms_of
    from peermask.store.folder import is_of_fleet
    from peermask.store.result import StoredRun
    from peermask.store.sweeps import SWEEP, SweepFolder

    console = Console(markup=False)  # paths may hold brackets
    if (run / SWEEP).is_file():
        print_sweep(console, SweepFolder.open(run))
        return
    result = StoredRun.open(run)
    print_result(console, result)
    for name in result.waiting:
        console.print(f"{name} has not started", soft_wrap=True)
    arms = arms_of(result)
    diverged = {name: arm for name, arm in arms.items() if arm.status == "diverged"}
    for name, arm in diverged.items():
        why = read_json(arm.folder.diverged).get("message")
        console.print(f"{name} diverged: {why}", soft_wrap=True, highlight=False)
    if missing := result.manifest.get("missing_agents"):
        console.print(f"collected without agents {', '.join(map(str, missing))}", soft_wrap=True)
    elif result.waiting or any(arm.hash is None and name not in diverged for name, arm in arms.items()):
        how = "peermask swarm FLEET" if is_of_fleet(run) else f"peermask run --resume {run}"
        console.print(f"unfinished; resume with: {how}", soft_wrap=True)
    elif result.hash is not None:
        console.print(f"hash {result.hash}", soft_wrap=True, highlight=False)


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


def watch(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, in progress or finished.")],
    host: Annotated[
        str, typer.Option(help="Address to serve on; any non-loopback address exposes the page.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free port.")] = 8321,
    open_: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Serve the report of a run live, read-only, until interrupted."""
    from peermask.reports.watch import make_server

    with make_server(runs, host, port) as server:
        print(f"{server.url} (Ctrl-C ends it)", flush=True)
        if open_:
            webbrowser.open(server.url)
        server.serve_forever()


# `peermask runs`: list, compare and delete runs.

runs_app = typer.Typer(help="List, compare and delete runs.", invoke_without_command=True)

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of comparisons.")]


@runs_app.callback()
def runs(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_runs(Path("runs"))


@runs_app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Where to look, also in folders inside it.")] = Path("runs"),
) -> None:
    """List the runs in a folder, the oldest first."""
    from peermask.store.runs import find_runs

    found = find_runs(folder)
    if not found:
        raise RunError(f"{folder} has no runs; start one with `peermask run CONFIG --out {folder}/NAME`")
    _print_rows(["created", "algorithm", "status", "round", "result", "sent", "run"], [_row(run) for run in found])


@runs_app.command("compare")
def compare_runs(runs: Runs) -> None:
    """Print how the configs and results of runs differ."""
    from peermask.store.runs import differences, read_run, runs_in

    found = [read_run(path) for run in runs for path in runs_in(run) if (path / "manifest.json").is_file()]
    if len(found) < 2:
        raise RunError(f"{runs[0]} is one run; name at least two to compare")
    names = [f"[{number}]" for number in range(1, len(found) + 1)]
    for name, run in zip(names, found, strict=True):
        print(f"{name} {run.path}")
    rows = [["status", *(run.status for run in found)], ["result", *map(_result, found)]]
    rows += [["sent", *map(_sent, found)]]
    rows += [[key, *values] for key, values in differences(found).items()]
    _print_rows(["", *names], rows)


@runs_app.command("delete")
def delete_runs(
    runs: Runs, yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False
) -> None:
    """Delete runs and their checkpoints, after asking; files that no run wrote are left."""
    from peermask.store.runs import delete_run, runs_in, size_of

    # All are checked before the first; one that is named twice, in two ways, is one.
    folders = list({path.resolve(): path for run in reversed(runs) for path in reversed(runs_in(run))}.values())[::-1]
    for path in folders:
        print(f"{path}  {format_bytes(size_of(path))}")
    if not yes and not typer.confirm(f"delete {_count(folders)}?"):
        print("nothing was deleted")
        raise typer.Exit(1)
    for path in folders:
        for left in delete_run(path):
            print(f"left: {left}, which no run wrote")
    emptied = [path for path in folders if path.exists()]
    also = f", and what runs wrote in {_count(emptied)}" if emptied else ""
    print(f"deleted {_count([path for path in folders if path not in emptied])}{also}")


def _count(folders: list[Path]) -> str:
    return f"{len(folders)} folder{'s' * (len(folders) != 1)}"


def _row(run: FoundRun) -> list[str]:
    done = "" if run.round is None else str(run.round)
    created = run.created[:16].replace("T", " ")
    return [created, run.algorithm, run.status, done, _result(run), _sent(run), str(run.path)]


def _result(run: FoundRun) -> str:
    return "" if run.value is None else f"{figure_name(run.figure)} {format_figure(run.figure, run.value)}"


def _sent(run: FoundRun) -> str:
    return "" if run.sent_bytes is None else format_bytes(run.sent_bytes)


def _print_rows(headings: list[str], rows: list[list[str]]) -> None:
    """Print columns as wide as they need: paths and values are never cut, also in a pipe."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for row in (headings, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.print("  ".join(cells).rstrip())
