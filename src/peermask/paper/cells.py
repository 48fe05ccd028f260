"""The cells of an experiment: which config each row, column and seed stands for, and which come first.

`add_released` gives experiments further columns with the inputs that the authors released: the graph, labels and sample
counts of the paper's twenty agents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from peermask.config.experiment import ExperimentConfig
from peermask.config.file import make_config
from peermask.data.partition import read_counts
from peermask.errors import ConfigError
from peermask.graph.topology import links_of_matrix, read_lines
from peermask.paper.preset import (
    Column,
    ConfigPart,
    Method,
    Preset,
    Row,
    Scale,
    ScaleName,
    add_columns,
    merge,
    methods,
    preset,
    scales,
)

GRAPH = "20_adj_matrix.txt"  # of the authors' repository
AGENTS, LABELS = 20, 10
PAPERS_GRAPH = {"name": "erdos-renyi", "p": 0.5}


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
        table = self.scale.config
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


def by_value(cells: Iterable[Cell], seeds: Sequence[int], first: Sequence[str] = ()) -> list[Cell]:
    """Order by information: accord and the paper's comparison, then baselines; one seed of all before more of few.

    Experiments that are named `first` come before all others, one after another.
    """
    places = {seed: place for place, seed in enumerate(seeds)}

    def rank(cell: Cell) -> tuple[int, int]:
        own, place = cell.of_row.rank, first.index(cell.experiment) if cell.experiment in first else len(first)
        return place, places[cell.seed] + (cell.preset.rank if own is None else own)

    return sorted(cells, key=rank)


def add_released(names: Sequence[str], folder: Path) -> None:
    """Add a column with the authors' inputs after each column of these experiments that has the paper's setting.

    Files are found in the folder or in its `Data`, as in the repository. Runs are named by the content of the files,
    so that they are found again in any folder.
    """
    added = 0
    for name in names:
        shape, columns = preset(name), []
        for column in shape.columns:
            columns.append(column)
            table = merge(merge(scales()["paper"].config, shape.config), column.config)
            labels = table["partition"].get("labels_per_agent")
            if table["graph"] == PAPERS_GRAPH and table["agents"] == AGENTS and labels in (3, 4, 5):
                columns.append(_released(column, labels, folder))
        add_columns(name, tuple(columns))
        added += len(columns) - len(shape.columns)
    if not added:
        listed = ", ".join(names)
        raise ConfigError(f"--released: no column of {listed} has the paper's graph and 3, 4 or 5 labels; leave it out")


def _released(column: Column, labels: int, folder: Path) -> Column:
    graph, counts = _find(folder, GRAPH), _find(folder, f"LocalDist_niid{labels}.txt")
    drawn = _find(folder, f"CategoryToClients{labels}.txt")
    _check_graph(graph)
    _check_labels(drawn, counts, labels)
    keys = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (graph, counts)]
    change = {
        "graph": {"name": "file", "path": keys[0]},
        "partition": {"name": "counts", "path": keys[1], "labels_per_agent": labels},
    }
    return Column(
        name=f"{column.name}, released",
        config=merge(column.config, change),
        files=dict(zip(keys, (str(graph), str(counts)), strict=True)),
    )


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / "Data" / name):
        if path.is_file():
            return path
    raise ConfigError(f"--released {folder}: no {name} there or in its Data; give a copy of the authors' repository")


def _check_graph(path: Path) -> None:
    graph = nx.Graph(links_of_matrix(path, read_lines(path), AGENTS))
    if len(graph) < AGENTS or not nx.is_connected(graph):
        raise ConfigError(f"{path}: some agents cannot reach the others; give a connected graph")


def _check_labels(drawn: Path, counts: Path, labels: int) -> None:
    """Check that both files name the same labels."""
    names, held = read_counts(drawn, AGENTS, LABELS - 1), read_counts(counts, AGENTS)
    if held.shape[1] != LABELS:
        raise ConfigError(f"{counts} has {held.shape[1]} numbers in a line; there are {LABELS} labels")
    for agent in range(AGENTS):
        listed, counted = sorted(set(names[agent].tolist())), np.flatnonzero(held[agent]).tolist()
        if len(listed) != labels:
            raise ConfigError(f"{drawn}: agent {agent} has labels {listed}; give {labels} different ones")
        if listed != counted:
            raise ConfigError(
                f"{counts}: agent {agent} has samples of labels {counted}, but {drawn.name} says {listed}"
            )
