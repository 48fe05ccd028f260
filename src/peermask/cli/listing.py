"""`peermask list`: what a config can choose, with options and defaults."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo
from rich.console import Console

from peermask.algorithms import algorithms
from peermask.data import datasets, partitions
from peermask.errors import ConfigError, nearest
from peermask.graph import topologies
from peermask.models.architectures import models
from peermask.models.frozen import inits
from peermask.registry import Entry, Registry

_KINDS: dict[str, Registry[Any]] = {
    "algorithms": algorithms,
    "datasets": datasets,
    "inits": inits,
    "models": models,
    "partitions": partitions,
    "topologies": topologies,
}


def list_things(
    kind: Annotated[str | None, typer.Argument(help=f"One of {', '.join(_KINDS)}; all by default.")] = None,
) -> None:
    """List what a config can name, and what can be set about each."""
    if kind is not None and kind not in _KINDS:
        raise ConfigError(f"there is no list of {kind!r}; {nearest(kind, _KINDS)}")
    console = Console(highlight=False)
    for name in _KINDS if kind is None else (kind,):
        console.print(f"[bold]{name}[/bold]")
        for entry in _KINDS[name]:
            _print_entry(console, entry)


def _print_entry(console: Console, entry: Entry[Any]) -> None:
    console.print(f"  [cyan]{entry.name}[/cyan]  {entry.summary}", soft_wrap=True)
    for key, field in entry.options.model_fields.items():
        about = f"  {field.description}" if field.description else ""
        console.print(f"      {key} = {_default(field)}[dim]{about}[/dim]", soft_wrap=True)


def _default(field: FieldInfo) -> str:
    return "(must be given)" if field.is_required() else str(field.default)
