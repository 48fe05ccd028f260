"""Run folders written by hand, so that a page can be tested without training anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from peermask.config.file import make_config
from peermask.files import write_json
from peermask.run.ledger import TRAFFIC
from peermask.run.metrics import METRICS
from peermask.store.checkpoint import save_masks
from peermask.store.folder import RunFolder, config_digest, write_result
from peermask.store.table import append_rows
from peermask.task import FIGURES

SMALL_LAYERS: list[dict[str, Any]] = [
    {"name": "0.weight", "kind": "conv", "shape": [8, 1, 3, 3]},
    {"name": "3.weight", "kind": "linear", "shape": [10, 32]},
]
ALEXNET_LAYERS: list[dict[str, Any]] = [
    {"name": "0.weight", "kind": "conv", "shape": [64, 3, 5, 5]},
    {"name": "4.weight", "kind": "conv", "shape": [128, 64, 5, 5]},
    {"name": "8.weight", "kind": "conv", "shape": [256, 128, 5, 5]},
    {"name": "13.weight", "kind": "linear", "shape": [192, 1024]},
    {"name": "15.weight", "kind": "linear", "shape": [10, 192]},
]


def write_run(
    path: Path,
    *,
    agents: int = 4,
    rounds: int = 20,
    every: int = 5,
    seed: int = 0,
    algorithm: str = "mce-pl",
    layers: list[dict[str, Any]] | None = None,
    masks_at: tuple[int, ...] = (10, 20),
    absences: bool = False,
    data_hash: str = "d" * 64,
    classes: tuple[str, ...] = tuple("0123456789"),
    finished: bool = True,
    gain: float = 0.0,
) -> Path:
    """A ring of agents whose accuracy rises with round and agent; each sends 1,000 bytes, then 136 a round."""
    layers = layers or SMALL_LAYERS
    folder = RunFolder(path)
    folder.create()
    values = {"agents": agents, "rounds": rounds, "seed": seed, "evaluation": {"every": every}}
    config = make_config({**values, "graph": {"name": "ring"}, "algorithm": {"name": algorithm}, "retention": 0.3})
    folder.config.write_text(tomli_w.dumps(config.table()))
    about = manifest_of(agents, seed, layers, data_hash, classes, config.hash)
    write_json(folder.manifest, {**about, "config_sha256": [config_digest(folder.config.read_text())]})
    numbers = range(every, rounds + 1, every)
    rows = [_evaluation(number, agent, rounds, gain) for number in numbers for agent in range(agents)]
    append_rows(folder.metrics, METRICS, rows)
    sent = [
        [number, agent, 2, 800, 240, 136, 80, *((1036, "keyframe") if number == 1 else (136, "delta"))]
        for number in range(1, rounds + 1)
        for agent in range(agents)
    ]
    append_rows(folder.traffic, TRAFFIC, sent)
    weights = sum(int(np.prod(layer["shape"])) for layer in layers)
    for number in masks_at:
        draw = np.random.default_rng(number).random((agents, weights))
        save_masks(folder.masks, number, draw < 0.3)
    if absences:
        rows = [[3, 0, 1, "gone", ""], [4, 0, 1, "gone", ""], [4, 2, 1, "silent", 3]]
        append_rows(path / "absences.csv", ("round", "agent", "neighbour", "why", "used"), rows)
    if finished:
        write_result(folder, {"status": "finished", "round": rounds, "hash": "0" * 64, "seconds": 12.5})
    return path


def _evaluation(number: int, agent: int, rounds: int, gain: float) -> list[object]:
    accuracy = gain + 0.5 + 0.4 * number / rounds + 0.01 * agent
    loss = 2.0 - accuracy
    return [
        number,
        agent,
        loss,
        accuracy - 0.02,
        loss + 0.1,
        accuracy,
        loss + 0.2,
        0.3,
        272.0 * number,
        0.5 * number,
        "nan",
        *(accuracy, accuracy + 0.01, accuracy - 0.01, accuracy - 0.05),  # all, own, weighted, macro F1
        *(accuracy - 0.02, accuracy - 0.01, accuracy - 0.03, accuracy - 0.07),
    ]


def manifest_of(
    agents: int, seed: int, layers: list[dict[str, Any]], data_hash: str, classes: tuple[str, ...], config_hash: str
) -> dict[str, Any]:
    weights = sum(int(np.prod(layer["shape"])) for layer in layers)
    return {
        "created": "2026-01-01T00:00:00+00:00",
        "config_hash": config_hash,
        "seed": seed,
        "dataset": {"name": f"digits {data_hash[:1]}", "sha256": data_hash},
        "graph": {"sha256": "0" * 64, "links": [sorted([agent, (agent + 1) % agents]) for agent in range(agents)]},
        "agents": [
            {
                "agent": agent,
                "labels": [agent % 10, (agent + 1) % 10],
                "retention": 0.1 + 0.1 * (agent % 4),
                **{"links": 2, "counts": [30, 10], "train": 40, "validation": 4, "test": 20},
            }
            for agent in range(agents)
        ],
        "classes": list(classes),
        "readout": "all",
        "task": "classification",
        "figures": list(FIGURES["classification"]),
        "weights": weights,
        "parameters": weights + 10,
        "layers": layers,
        "over_frozen_weights": True,
    }
