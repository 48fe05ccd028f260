"""`peermask show`, `report`, `watch`, `list` and `plan`: what runs reached, what they need, what a config can say."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from peermask.cli.options import Import, import_plugins
from peermask.cli.run import Config, Set, print_sweep
from peermask.errors import ConfigError, nearest

if TYPE_CHECKING:
    import torch

    from peermask.run.plan import Plan


def show(run: Annotated[Path, typer.Argument(help="A run folder, or a sweep's.")]) -> None:
    """Print the results of a run or sweep, finished or not."""
    from peermask.files import read_json
    from peermask.reports.tables import agents_table, closing_lines, label_of
    from peermask.store.folder import is_of_fleet
    from peermask.store.result import StoredRun
    from peermask.store.sweeps import SWEEP, SweepFolder

    console = Console(markup=False)  # paths may hold brackets
    if (run / SWEEP).is_file():
        print_sweep(console, SweepFolder.open(run))
        return
    result = StoredRun.open(run)
    console.print(agents_table(result))
    for line in closing_lines(result):
        console.print(line, soft_wrap=True, highlight=False)
    for name in result.waiting:
        console.print(f"{name} has not started", soft_wrap=True)
    arms = (result, *result.compared)
    diverged = [arm for arm in arms if arm.status == "diverged"]
    for arm in diverged:
        why = read_json(arm.folder.diverged).get("message")
        console.print(f"{label_of(arm)} diverged: {why}", soft_wrap=True, highlight=False)
    if missing := result.manifest.get("missing_agents"):
        console.print(f"collected without agents {', '.join(map(str, missing))}", soft_wrap=True)
    elif result.waiting or any(arm.hash is None and arm not in diverged for arm in arms):
        how = "peermask swarm FLEET" if is_of_fleet(run) else f"peermask run --resume {run}"
        console.print(f"not finished; resume with: {how}", soft_wrap=True)
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


# `peermask list`: what a config can choose and set, with defaults.

CATALOGUE = Path(__file__).parents[1] / "config" / "catalogue.json"
KINDS = (
    *("algorithms", "datasets", "inits", "losses", "metrics", "models", "options", "partitions"),
    *("schedules", "topologies"),
)


def list_things(
    kind: Annotated[str | None, typer.Argument(help=f"One of {', '.join(KINDS)}; all by default.")] = None,
    import_: Import = None,
) -> None:
    """List the names that a config can use, with their options."""
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"there is no list of {kind!r}; {nearest(kind, KINDS)}")
    console = Console(highlight=False, markup=False)
    found = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    if import_:
        from peermask.config.catalogue import catalogue

        import_plugins(import_)
        found = catalogue()
    for name in KINDS if kind is None else (kind,):
        console.print(name, style="bold")
        for entry in found[name]:
            _print_entry(console, entry)


def _print_entry(console: Console, entry: dict[str, Any]) -> None:
    title = Text(entry["name"] + "  " * bool(entry["name"]), style="cyan")
    console.print("  ", title, entry["summary"], sep="", soft_wrap=True)
    for option in entry["options"]:
        about = "  ".join(["", *filter(None, (option["values"], option["about"]))])
        console.print(f"      {option['key']} = {option['default']}", Text(about, style="dim"), sep="", soft_wrap=True)


# `peermask plan`: what a run would be, before any of it is done.


def plan(
    config: Config = None,
    set_: Set = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    processes: Annotated[
        int, typer.Option(min=1, help="Number of processes to divide agents between, each on its own machine or GPU.")
    ] = 1,
    import_: Import = None,
) -> None:
    """Check a config and print what it needs, and all its defaults."""
    from peermask.compute.device import pick_device
    from peermask.config.file import load_config
    from peermask.run.plan import plan as make_plans

    console = Console(highlight=False)
    resolved = load_config(config, set_ or (), import_ or ())
    where = pick_device(device)
    with Console(stderr=True).status(f"looking at {resolved.agents} agents"):
        made = list(make_plans(resolved, device=str(where), processes=processes).values())
    console.print(_table(made, where))
    for note in dict.fromkeys(note for one in made for note in one.notes):
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if refused := made[0].refused:
        console.print(f"cannot be masked: {', '.join(refused)}", markup=False, soft_wrap=True)
    console.print(resolved.toml(), markup=False)


def _table(plans: list[Plan], device: torch.device) -> Table:
    from peermask.reports.tables import percent
    from peermask.run.format import format_bytes

    table = Table(title=f"plan on {device}", title_justify="left")
    table.add_column("")
    for made in plans:
        table.add_column(made.name, justify="right")
    rows: dict[str, list[str]] = {
        "agents": [str(p.agents) for p in plans],
        "directed links": [str(p.links) for p in plans],
        "masked weights": [f"{p.weights:,}" for p in plans],
        "  of which a mask keeps": [_range(percent(p.kept[0]), percent(p.kept[1])) for p in plans],
        "all parameters": [f"{p.parameters:,}" for p in plans],
        **{f"  {fate}": [_numbers(p.account[fate]) for p in plans] for fate in plans[0].account},
        "training samples per agent": [_range(*map(str, p.samples)) for p in plans],
        "agents at once": [str(p.chunk) for p in plans],
        "gradient path": [p.path for p in plans],
        "memory of a process, about": [format_bytes(p.memory) for p in plans],
        "bytes per message, as a bitmap": [format_bytes(p.message_bytes) for p in plans],
        "  in a round, over all links": [format_bytes(p.message_bytes * p.links) for p in plans],
        "  in all rounds": [format_bytes(p.message_bytes * p.links * p.rounds) for p in plans],
        "a node remembers, per neighbour": [_remembered(p) for p in plans],
        "  of so many neighbours": [str(p.remembered) for p in plans],
        "checkpoint": [format_bytes(p.checkpoint) for p in plans],
        "time without evaluation, about": ["-" if p.seconds is None else f"{max(p.seconds, 1):.0f} s" for p in plans],
    }
    for heading, cells in rows.items():
        table.add_row(heading, *cells)
    return table


def _remembered(plan: Plan) -> str:
    from peermask.run.format import format_bytes

    return f"{format_bytes(plan.known_bytes)}, {plan.known_bytes / plan.weights:.1f} bytes a weight"


def _numbers(account: tuple[int, int]) -> str:
    tensors, numbers = account
    return f"{numbers:,} in {tensors} tensor{'s' * (tensors != 1)}"


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
