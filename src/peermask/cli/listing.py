"""`peermask list`: what a config can choose, with options and defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.text import Text

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
    console = Console(highlight=False, markup=False)
    for name in _KINDS if kind is None else (kind,):
        console.print(name, style="bold")
        for entry in _KINDS[name]:
            _print_entry(console, entry)


def _print_entry(console: Console, entry: Entry[Any]) -> None:
    console.print("  ", Text(entry.name, style="cyan"), f"  {entry.summary}", sep="", soft_wrap=True)
    for key, field in entry.options.model_fields.items():
        about = "  ".join(["", *_choices(field), *([field.description] if field.description else [])])
        console.print(f"      {key} = {_default(field)}", Text(about, style="dim"), sep="", soft_wrap=True)


def _choices(field: FieldInfo) -> list[str]:
    """The words that may be given, where only some may."""
    given = [field.annotation, *get_args(field.annotation)]
    words = [word for kind in given if get_origin(kind) is Literal for word in get_args(kind)]
    return [" | ".join(map(str, words))] if words else []


def _default(field: FieldInfo) -> str:
    return "(must be given)" if field.is_required() else str(field.default)
