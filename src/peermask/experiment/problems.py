"""Turns what a validator says into one line that names the key, the value, and what to write instead."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from peermask.errors import ConfigError, nearest


def first_problem(error: ValidationError, model: type[BaseModel], prefix: str = "") -> ConfigError:
    problems = error.errors()
    found = problems[0]
    location = [str(part) for part in found["loc"]]
    key = ".".join(([prefix] if prefix else []) + location) or "config"
    if found["type"] == "extra_forbidden":
        text = f"{key}: unknown key; {nearest(location[-1], _keys_at(model, location[:-1]))}"
    elif found["type"] == "missing":
        text = f"{key}: must be given"
    else:
        text = f"{key} = {_shown(found['input'])}: {_plain(found)}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return ConfigError(text + more)


def _keys_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """The keys allowed in the table at a path."""
    for part in path:
        field = model.model_fields.get(part)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        model = field.annotation
    return list(model.model_fields)


def _plain(found: Any) -> str:
    message = str(found["msg"]).removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
