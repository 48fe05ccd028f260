"""`peermask list`: what a config can choose and set, with defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from peermask.cli.imports import Import, bring
from peermask.errors import ConfigError, nearest

CATALOGUE = Path(__file__).parents[1] / "experiment" / "catalogue.json"
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
        from peermask.experiment.catalogue import catalogue

        bring(import_)
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
