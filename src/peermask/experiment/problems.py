"""Turns what a validator says into one line that names the key, the value, and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from peermask.errors import ConfigError, nearest

FORMS = ("int", "float", "str", "bool", "none")


def first_problem(error: ValidationError, model: type[BaseModel], prefix: str = "") -> ConfigError:
    problems = error.errors()
    found = _most_telling(problems)
    location = [str(part) for part in found["loc"] if not _is_form(part)]
    key = ".".join(([prefix] if prefix else []) + location) or "config"
    if found["type"] == "extra_forbidden":
        text = f"{key}: unknown key; {nearest(location[-1], _keys_at(model, location[:-1]))}"
    elif found["type"] == "missing":
        text = f"{key}: must be given"
    else:
        alike = [each for each in problems if _place(each) == _place(found) and len(each["loc"]) == len(found["loc"])]
        text = f"{key} = {_shown(found['input'])}: {', or '.join(dict.fromkeys(map(_plain, alike)))}"
    others = {_place(each) for each in problems} - {_place(found)}
    more = f" (and {len(others)} more)" if others else ""
    return ConfigError(text + more)


def _most_telling(problems: Sequence[Any]) -> Any:
    """The first; of a value that may have several forms, the complaint of the form it came nearest to."""
    place = _place(problems[0])
    return max((each for each in problems if _place(each) == place), key=lambda each: len(each["loc"]))


def _place(problem: Any) -> tuple[object, ...]:
    """Where the value is, up to where it may have several forms."""
    loc = problem["loc"]
    return tuple(loc[: next((at for at, part in enumerate(loc) if _is_form(part)), len(loc))])


def _is_form(part: object) -> bool:
    """Whether it is no key, but pydantic's name for one of several forms that a value may have."""
    text = str(part)
    return text.startswith(("constrained-", "function-", "list[", "dict[", "literal[", "tuple[")) or text in FORMS


def _keys_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """The keys allowed in the table at a path."""
    for part in path:
        field = model.model_fields.get(part)
        # A table that may be absent has a union as its type.
        forms = () if field is None else (field.annotation, *get_args(field.annotation))
        tables = [form for form in forms if isinstance(form, type) and issubclass(form, BaseModel)]
        if not tables:
            return []
        model = tables[0]
    return [field.alias or name for name, field in model.model_fields.items()]


def _plain(found: Any) -> str:
    message = str(found["msg"]).removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
