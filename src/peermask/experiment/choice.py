"""A choice in a config: the name of a registered thing, with its own options beside it in the same table.

[graph]
name = "erdos-renyi"
p = 0.5
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, PlainSerializer, ValidationError, ValidationInfo

from peermask.algorithms import algorithms
from peermask.data import datasets, partitions
from peermask.errors import ConfigError
from peermask.experiment.problems import first_problem
from peermask.graph import schedules, topologies
from peermask.models.architectures import models
from peermask.registry import Options, Registry


@dataclass(frozen=True)
class Choice:
    name: str
    options: Options

    def table(self) -> dict[str, Any]:
        return {"name": self.name, **self.options.model_dump(mode="json", exclude_none=True)}


class UnknownOptions(Options):
    """Of something that a plug-in registers, which is not imported here: unchecked."""

    model_config = ConfigDict(frozen=True, extra="allow")


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
        raise ConfigError(f"{key} = {value!r}: must be a table with a name, such as {{name = {_example(registry)!r}}}")
    if unchecked and name not in registry:
        return Choice(name, UnknownOptions.model_validate({k: v for k, v in table.items() if k != "name"}))
    try:
        entry = registry[name]
    except ConfigError as error:
        raise ConfigError(f"{key}.name: {error}") from None
    try:
        options = entry.options.model_validate({k: v for k, v in table.items() if k != "name"})
    except ValidationError as error:
        raise first_problem(error, entry.options, key) from None
    return Choice(entry.name, options)


def _example(registry: Registry[Any]) -> str:
    return next(iter(registry)).name


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
