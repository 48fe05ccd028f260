"""Catalogue of all config keys and choices as plain values, for `peermask list` and docs/config.md.

It is read off the code and kept in catalogue.json, so that listing needs no import that computes:

    python -m peermask.config.catalogue docs/config.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from peermask.algorithms import algorithms
from peermask.config.choice import Choice
from peermask.config.experiment import ExperimentConfig
from peermask.data import datasets, partitions
from peermask.data.measures import metrics
from peermask.graph import schedules, topologies
from peermask.models.architectures import models
from peermask.models.frozen import inits
from peermask.models.outputs import losses
from peermask.registry import Options, Registry

KEPT = Path(__file__).with_name("catalogue.json")

# By the word after `peermask list`: what is listed, and the config table that names one of them.
REGISTRIES: dict[str, tuple[str, Registry[Any]]] = {
    "algorithms": ("[algorithm] and [[compare]]", algorithms),
    "datasets": ("[dataset]", datasets),
    "inits": ("frozen.init", inits),
    "losses": ("task.loss", losses),
    "metrics": ("task.metrics", metrics),
    "models": ("[model]", models),
    "partitions": ("[partition]", partitions),
    "schedules": ("[schedule]", schedules),
    "topologies": ("[graph]", topologies),
}

BEGINNING = """# Config

An experiment is a TOML file. Keys that you leave out have the defaults given here; `peermask plan` shows a config with
all of them. On the command line `--set algorithm.lr=0.1` overrides a key, and `peermask list` prints these tables.

This page is generated from the code by `python -m peermask.config.catalogue docs/config.md`.
"""


def catalogue() -> dict[str, list[dict[str, Any]]]:
    """Collect `options` and each registry's entries, with name, summary and options."""
    tables = [_entry("", "at the top of the file", ExperimentConfig)]
    for key, field in ExperimentConfig.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if _is_table(kind)]
        tables += [_entry(f"[{key}]", (kind.__doc__ or "").strip().split("\n")[0], kind) for kind in kinds]
    named = {
        kind: [_entry(entry.name, entry.summary, entry.options) for entry in registry]
        for kind, (_, registry) in REGISTRIES.items()
    }
    return {**named, "options": tables}


def as_json(content: dict[str, list[dict[str, Any]]]) -> str:
    """The catalogue as a file, with an option on each line."""
    line = partial(json.dumps, ensure_ascii=False)

    def block(entry: dict[str, Any]) -> str:
        options = ",".join(f"\n  {line(option)}" for option in entry["options"])
        return f' {{"name": {line(entry["name"])}, "summary": {line(entry["summary"])}, "options": [{options}]}}'

    kinds = (f"{line(kind)}: [\n" + ",\n".join(map(block, entries)) + "]" for kind, entries in content.items())
    return "{" + ",\n".join(kinds) + "}\n"


def as_markdown(content: dict[str, list[dict[str, Any]]]) -> str:
    parts = [BEGINNING]
    for entry in content["options"]:
        title = f"`{entry['name']}`\n\n{entry['summary']}" if entry["name"] else "At the top"
        parts.append(f"## {title}\n")
        parts.append(_table(entry["options"]))
    for kind, (where, _) in REGISTRIES.items():
        parts.append(f"## {kind.capitalize()}: `{where}`\n")
        for entry in content[kind]:
            parts.append(f"### {entry['name']}\n\n{entry['summary']}\n")
            if entry["options"]:
                parts.append(_table(entry["options"]))
    return "\n".join(parts)


def _table(options: list[dict[str, str]]) -> str:
    rows = ["| key | default | values | |", "|---|---|---|---|"]
    for option in options:
        cells = (f"`{option['key']}`", f"`{option['default']}`", option["values"], option["about"])
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _entry(name: str, summary: str, options: type[Options]) -> dict[str, Any]:
    described = [
        {
            "key": field.alias or key,
            "default": "(must be given)" if field.is_required() else _plain(field.default),
            "values": _values(field),
            "about": field.description or "",
        }
        for key, field in options.model_fields.items()
        if not _is_table(field.annotation)
    ]
    return {"name": name, "summary": summary, "options": described}


def _is_table(kind: Any) -> bool:
    """A table with its own keys, which are listed separately."""
    return isinstance(kind, type) and issubclass(kind, Options)


def _plain(default: object) -> str:
    """Convert a value to about what TOML would hold."""
    match default:
        case Options():
            return json.dumps(default.model_dump(exclude_none=True)).replace('": ', '" = ')
        case tuple() | list():
            return json.dumps(list(default))
        case bool() | str():
            return json.dumps(default)
        case {}:
            return "{}"
        case None:
            return "(none)"
    return str(default)


def _values(field: FieldInfo) -> str:
    """The allowed words, or the range of a number."""
    if field.annotation is Choice:
        return "a name, or a table with one"
    if field.annotation is bool:
        return "true or false"
    if field.annotation in (int, float):
        return _range(field.annotation, field.metadata)
    is_union = get_origin(field.annotation) in (Union, UnionType)
    forms = [form for form in (get_args(field.annotation) if is_union else [field.annotation]) if form is not NoneType]
    words = [str(word) for form in forms if get_origin(form) is Literal for word in get_args(form)]
    numbers = [form for form in forms if get_origin(form) is Annotated and get_args(form)[0] in (int, float)]
    if len(forms) > sum(get_origin(form) is Literal for form in forms) + len(numbers):
        return ""
    ranges = [_range(get_args(form)[0], getattr(get_args(form)[1], "metadata", ())) for form in numbers]
    return " | ".join([*ranges, *words])


def _range(kind: Any, metadata: Sequence[object]) -> str:
    bounds = []
    for bound in metadata:
        match bound:
            case Gt():
                bounds.append(f"above {bound.gt}")
            case Ge():
                bounds.append(f"at least {bound.ge}")
            case Lt():
                bounds.append(f"below {'2^63' if bound.lt == 2**63 else bound.lt}")
            case Le():
                bounds.append(f"at most {bound.le}")
    return ", ".join(["whole number" if kind is int else "number", *bounds])


if __name__ == "__main__":
    found = catalogue()
    KEPT.write_text(as_json(found), encoding="utf-8")
    for page in sys.argv[1:]:
        Path(page).write_text(as_markdown(found), encoding="utf-8")
