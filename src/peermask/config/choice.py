"""Choices in a config: a registered thing with its options; and messages about keys that are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, PlainSerializer, ValidationError, ValidationInfo

from peermask.algorithms import algorithms
from peermask.data import datasets, partitions
from peermask.errors import ConfigError, nearest
from peermask.graph import schedules, topologies
from peermask.models.architectures import models
from peermask.registry import Options, Registry

FORMS = ("int", "float", "str", "bool", "none")
MUST_BE = {  # by pydantic's type of a problem, in the words of `peermask list`
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "too_short": "a list of at least {min_length}",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "string_type": "text",
}


def first_problem(error: ValidationError, model: type[BaseModel], prefix: str = "") -> ConfigError:
    problems = error.errors()
    first = _place(problems[0])  # of several forms of its value, the nearest
    problem = max((each for each in problems if _place(each) == first), key=lambda each: len(each["loc"]))
    location = [str(part) for part in problem["loc"] if not _is_form(part)]
    key = ".".join(([prefix] if prefix else []) + location) or "config"
    if problem["type"] == "extra_forbidden":
        text = f"{key}: unknown key; {nearest(location[-1], _keys_at(model, location[:-1]))}"
    elif problem["type"] == "missing":
        text = f"{key}: must be given"
    else:
        alike = [
            each for each in problems if _place(each) == _place(problem) and len(each["loc"]) == len(problem["loc"])
        ]
        # A check of several keys names those it is about; the whole table would hide them.
        of_table = problem["type"] == "value_error" and isinstance(problem["input"], dict)
        value = repr(problem["input"])
        shown = "" if of_table else f" = {value if len(value) <= 60 else value[:57] + '...'}"
        text = f"{key}{shown}: {', or '.join(dict.fromkeys(map(_plain, alike)))}"
    others = {_place(each) for each in problems} - {_place(problem)}
    more = f" (and {len(others)} more)" if others else ""
    return ConfigError(text + more)


def _place(problem: Any) -> tuple[object, ...]:
    """The path of the value, up to where it may have several forms."""
    loc = problem["loc"]
    return tuple(loc[: next((at for at, part in enumerate(loc) if _is_form(part)), len(loc))])


def _is_form(part: object) -> bool:
    """Whether a name is pydantic's for one of several forms of a value, not a key."""
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


def _plain(problem: Any) -> str:
    if problem["type"] in MUST_BE:
        limits = {
            key: f"{limit:g}" if isinstance(limit, float) else limit for key, limit in problem.get("ctx", {}).items()
        }
        return "must be " + MUST_BE[problem["type"]].format_map(limits)
    message = str(problem["msg"]).removeprefix("Value error, ")
    return message[0].lower() + message[1:]


@dataclass(frozen=True)
class Choice:
    """A registered thing and its options, from one table: `name = "erdos-renyi"`, `p = 0.5`."""

    name: str
    options: Options

    def table(self) -> dict[str, Any]:
        return {"name": self.name, **self.options.model_dump(mode="json", exclude_none=True)}


class UnknownOptions(Options, extra="allow"):
    """Unchecked options of a plug-in that is not imported here."""


UNCHECKED = {"unchecked": True}  # a validation context in which names that nothing has registered are let through


def choose(
    registry: Registry[Any], key: str, value: object, default: str | None = None, *, unchecked: bool = False
) -> Choice:
    """Check a table, or a bare name, against the registry. Errors name the key.

    With `unchecked`, a name that nothing has registered is accepted with its options unchecked: reading a run is
    no reason to import the plug-in it was made with.
    """
    if isinstance(value, Choice):
        return value
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not isinstance(name := table.get("name", default), str):
        raise ConfigError(
            f"{key} = {value!r}: must be a table with a name, such as {{name = {next(iter(registry)).name!r}}}"
        )
    values = {option: each for option, each in table.items() if option != "name"}
    if unchecked and name not in registry:
        return Choice(name, UnknownOptions.model_validate(values))
    try:
        kind = registry[name].options
    except ConfigError as error:
        raise ConfigError(f"{key}.name: {error}") from None
    try:
        return Choice(name, kind.model_validate(values))
    except ValidationError as error:
        raise first_problem(error, kind, key) from None


def _checked(registry: Registry[Any], key: str, default: str | None = None) -> BeforeValidator:
    def check(value: object, info: ValidationInfo) -> Choice:
        return choose(registry, key, value, default, unchecked=info.context == UNCHECKED)

    return BeforeValidator(check)


_as_table = PlainSerializer(Choice.table)

GraphChoice = Annotated[Choice, _checked(topologies, "graph", "erdos-renyi"), _as_table]
ScheduleChoice = Annotated[Choice, _checked(schedules, "schedule"), _as_table]
DatasetChoice = Annotated[Choice, _checked(datasets, "dataset", "digits"), _as_table]
PartitionChoice = Annotated[Choice, _checked(partitions, "partition", "labels"), _as_table]
ModelChoice = Annotated[Choice, _checked(models, "model", "cnn"), _as_table]
AlgorithmChoice = Annotated[Choice, _checked(algorithms, "algorithm", "mce-pl"), _as_table]
ComparedChoice = Annotated[Choice, _checked(algorithms, "compare"), _as_table]
