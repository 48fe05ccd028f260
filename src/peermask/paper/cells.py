"""The cells of an experiment: which config each row, column and seed stands for, and which come first."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peermask.config.experiment import ExperimentConfig
from peermask.config.file import make_config
from peermask.paper.preset import Column, ConfigPart, Method, Preset, Row, Scale, ScaleName, merge, methods, preset


@dataclass(frozen=True)
class Cell:
    """One run of one experiment."""

    experiment: str
    row: int
    column: int
    seed: int

    @property
    def preset(self) -> Preset:
        return preset(self.experiment)

    @property
    def of_row(self) -> Row:
        return self.preset.rows[self.row]

    @property
    def of_column(self) -> Column:
        return self.preset.columns[self.column]

    @property
    def method(self) -> Method:
        return methods()[self.of_row.method]

    @property
    def name(self) -> str:
        return f"{self.experiment}: {self.of_row.name}, {self.of_column.name}, seed {self.seed}"


@dataclass(frozen=True)
class Job:
    """One run to do, with a name that says what was requested.

    The name covers what presets and choices set and not what is left to defaults, so that results are found again
    by a later version that has more options. A preset that means an option's default names it, in case that changes.
    """

    key: str
    config: ExperimentConfig


@dataclass(frozen=True)
class Defaults:
    """Settings of all cells of a call: the scale, and what the user set about it."""

    name: ScaleName
    scale: Scale
    base: ConfigPart  # the scale's config, with the user's data folder in it
    imports: tuple[str, ...] = ()  # plug-ins that runs record; a job's name does not cover where they are

    def table(self, cell: Cell, chosen: Mapping[str, Any], **changes: Any) -> ConfigPart:
        """The config of a cell as presets, choices and changes set it; an experiment's row has the last word."""
        layers: Sequence[Mapping[str, Any]] = (
            {"algorithm": cell.method.algorithm},
            cell.method.config,
            cell.method.scale.get(self.name, {}),
            cell.preset.config,
            cell.preset.scale.get(self.name, {}),
            cell.of_column.config,
            chosen,
            cell.of_row.config,
            cell.of_row.scale.get(self.name, {}),
            {"seed": cell.seed},
            changes,
        )
        table = self.base
        for layer in layers:
            table = merge(table, layer)
        return table

    def job(self, cell: Cell, chosen: Mapping[str, Any], **changes: Any) -> Job:
        """The run of a cell, with its method's tuned options."""
        table = self.table(cell, chosen, **changes)
        digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]
        for section in ("graph", "partition") if cell.of_column.files else ():
            table[section] = {key: cell.of_column.files.get(value, value) for key, value in table[section].items()}
        named = {**table, "imports": list(self.imports)} if self.imports else table
        return Job(f"{cell.method.algorithm['name']}-{digest}", make_config(named))


def cells_of(experiment: str, seeds: Sequence[int]) -> list[Cell]:
    shape = preset(experiment)
    return [
        Cell(experiment, row, column, seed)
        for seed in seeds
        for row in range(len(shape.rows))
        for column in range(len(shape.columns))
    ]


def tuning_cell(name: str, seed: int) -> Cell:
    """The cell where a method is tuned: the middle column, and the middle one of the method's rows."""
    experiment = methods()[name].tuned_on
    shape = preset(experiment)
    rows = [index for index, row in enumerate(shape.rows) if row.method == name]
    columns = [index for index, column in enumerate(shape.columns) if not column.files]  # without --released
    return Cell(experiment, rows[len(rows) // 2], columns[len(columns) // 2], seed)


def by_value(cells: Iterable[Cell], seeds: Sequence[int]) -> list[Cell]:
    """Order by information: the paper's comparison, then baselines; one seed of all cells before more seeds of few."""
    places = {seed: place for place, seed in enumerate(seeds)}

    def rank(cell: Cell) -> int:
        own = cell.of_row.rank
        return places[cell.seed] + (cell.preset.rank if own is None else max(own, cell.preset.rank))

    return sorted(cells, key=rank)
