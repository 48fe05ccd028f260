"""`peermask plan`, `data` and `list`: what a run would need, what its agents have, and what a config can say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from peermask.cli.options import Config, Device, Import, Set, import_plugins
from peermask.errors import ConfigError, nearest
from peermask.task import format_bytes

if TYPE_CHECKING:
    import torch

    from peermask.run.data_summary import DataSummary
    from peermask.run.plan import Plan

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
    device: Device = "auto",
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
    console.print(_plan_table(made, where))
    for note in dict.fromkeys(note for one in made for note in one.notes):
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if refused := made[0].refused:
        console.print(f"cannot be masked: {', '.join(refused)}", markup=False, soft_wrap=True)
    console.print(resolved.toml(), markup=False)


def _plan_table(plans: list[Plan], device: torch.device) -> Table:
    from peermask.reports.tables import percent

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
        "a node remembers, per neighbour": [
            f"{format_bytes(p.known_bytes)}, {p.known_bytes / p.weights:.1f} bytes a weight" for p in plans
        ],
        "  of so many neighbours": [str(p.remembered) for p in plans],
        "checkpoint": [format_bytes(p.checkpoint) for p in plans],
        "time without evaluation, about": ["-" if p.seconds is None else f"{max(p.seconds, 1):.0f} s" for p in plans],
    }
    for heading, cells in rows.items():
        table.add_row(heading, *cells)
    return table


def _numbers(account: tuple[int, int]) -> str:
    tensors, numbers = account
    return f"{numbers:,} in {tensors} tensor{'s' * (tensors != 1)}"


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


# `peermask data`: a look at what agents will learn from.

NAMED = 8  # features or classes that a line names before it counts the rest


def data(
    config: Config = None,
    set_: Set = None,
    import_: Import = None,
    agents: Annotated[int, typer.Option(min=1, help="Show at most this many agents.")] = 50,
) -> None:
    """Print what data each agent has, and what is odd about it."""
    from peermask.config.file import load_config
    from peermask.run.data_summary import describe_data

    console = Console(highlight=False, markup=False)
    seen = describe_data(load_config(config, set_ or (), import_ or ()))
    console.print(_data_table(seen, agents))
    if (rest := len(seen.train) - agents) > 0:
        console.print(f"and {rest} more agents; show them with --agents {len(seen.train)}", soft_wrap=True)
    for line in findings(seen):
        console.print(line, soft_wrap=True)


def _data_table(seen: DataSummary, most: int) -> Table:
    table = Table(title=f"{seen.name}, {seen.task}", title_justify="left")
    for heading in ("agent", "train", "validation", "test"):
        table.add_column(heading, justify="right", no_wrap=True)
    if seen.histograms:
        table.add_column("training samples by class", overflow="fold")
    for agent, counts in enumerate(zip(seen.train, seen.validation, seen.test, strict=True)):
        if agent == most:
            break
        row = [str(agent), *map(str, counts)]
        if seen.histograms:
            named = zip(seen.classes, seen.histograms[agent], strict=True)
            row.append("  ".join(f"{name}: {count}" for name, count in named if count))
        table.add_row(*row)
    return table


def findings(seen: DataSummary) -> list[str]:
    """Say what a user should know before a run, one line each."""
    low, high = min(low for low, _ in seen.ranges), max(high for _, high in seen.ranges)
    widest = max(seen.ranges, key=lambda pair: pair[1] - pair[0])
    lines = [
        f"inputs have shape {'x'.join(map(str, seen.shape))} and values from {low:g} to {high:g}",
        f"the widest feature or channel goes from {widest[0]:g} to {widest[1]:g}" if len(seen.ranges) > 1 else "",
        f"constant features or channels: {_some(list(map(str, seen.constant)))}" if seen.constant else "",
        f"inputs that several agents train on: {seen.shared}",
        f"test samples that are also trained on: {seen.leaked}" + "; results would look too good" * (seen.leaked > 0),
    ]
    if seen.histograms:
        names = f" ({_some(seen.missing)})" if seen.missing else ""
        lines.append(f"classes that no agent trains on: {len(seen.missing)}{names}")
    return [line for line in lines if line]


def _some(names: tuple[str, ...] | list[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
