"""`peermask data`: a look at what agents will learn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from peermask.cli.options import Import
from peermask.cli.run import Config, Set

if TYPE_CHECKING:
    from peermask.run.look import DataSummary

NAMED = 8  # features or classes that a line names before it counts the rest


def data(
    config: Config = None,
    set_: Set = None,
    import_: Import = None,
    agents: Annotated[int, typer.Option(min=1, help="Show at most this many agents.")] = 50,
) -> None:
    """Print what data each agent has, and what is odd about it."""
    from peermask.config.file import load_config
    from peermask.run.look import describe_data

    console = Console(highlight=False, markup=False)
    seen = describe_data(load_config(config, set_ or (), import_ or ()))
    console.print(_table(seen, agents))
    for line in (*_more(seen, agents), *findings(seen)):
        console.print(line, soft_wrap=True)


def _table(seen: DataSummary, most: int) -> Table:
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


def _more(seen: DataSummary, most: int) -> list[str]:
    rest = len(seen.train) - most
    return [f"and {rest} more agents; show them with --agents {len(seen.train)}"] if rest > 0 else []


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
        lines.append(f"classes that no agent trains on: {_some(seen.missing) or 'none'}")
    return [line for line in lines if line]


def _some(names: tuple[str, ...] | list[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
