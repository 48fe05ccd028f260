"""Inputs that the authors released: the graph, labels and sample counts of the paper's twenty agents."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from peermask.data.partition import read_counts
from peermask.errors import ConfigError
from peermask.graph.topology import links_of_matrix, read_lines
from peermask.paper.preset import Column, add_columns, merge, preset, scales

GRAPH = "20_adj_matrix.txt"
AGENTS, LABELS = 20, 10
PAPERS_GRAPH = {"name": "erdos-renyi", "p": 0.5}


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
    files = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in (graph, counts)}
    by_path: dict[Path, Any] = {path: key for key, path in files.items()}
    change = {
        "graph": {"name": "file", "path": by_path[graph]},
        "partition": {"name": "counts", "path": by_path[counts], "labels_per_agent": labels},
    }
    return Column(
        name=f"{column.name}, released",
        config=merge(column.config, change),
        files={key: str(path) for key, path in files.items()},
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
