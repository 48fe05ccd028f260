"""Models that the tests take away: of a small run, and the paper's network with a random mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import peermask
from peermask.config.file import make_config
from peermask.exports.personal import Personal
from peermask.masks.masker import Masker
from peermask.run.build import build
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment
from peermask.store.result import AgentResult

CNN: dict[str, Any] = {
    "agents": 3,
    "rounds": 2,
    "batch_size": 8,
    "retention": [0.1, 0.3, 0.5],
    "graph": {"name": "ring"},
    "data": {"fraction": 0.1},
    "model": {"name": "cnn", "channels": [8, 6], "hidden": 16},
    "evaluation": {"every": 2},
}


def run_small(path: Path, **changes: Any) -> RunResult:
    return run_experiment(make_config({**CNN, **changes}), path, execution=Execution("cpu"))


def undecided(outputs: torch.Tensor) -> int:
    """Samples whose two best outputs [n, C] lie so near that another order of additions may answer otherwise.

    Files agree within 1e-4. Zeros alone, of a sample that no filter answers to, are zeros in any order."""
    best = outputs.topk(2).values
    return int(((best[:, 0] - best[:, 1] < 1e-3) & outputs.any(1)).sum())


def untrained_alexnet(retention: float) -> Personal:
    """Agent 0 with the mask of random scores; its run was never written."""
    images = np.zeros((10, 3, 32, 32), np.uint8)
    data = peermask.from_arrays(images, np.arange(10), images, np.arange(10))
    values = {"agents": 1, "graph": {"name": "complete"}, "partition": {"name": "iid"}, "model": {"name": "alexnet"}}
    experiment = build(make_config({**values, "retention": retention, "data": {"validation": 0}}), data)
    layout, keep = experiment.network.layout, experiment.agents.keep
    masker = Masker(layout, experiment.frozen.values, experiment.config.mask)
    scores = np.random.default_rng(0).standard_normal((1, layout.weights)).astype(np.float32)
    params = masker.model(masker.mask(torch.from_numpy(scores), keep), keep)[0]
    agent = AgentResult(0, (0,), retention, 0.5, 0.5, 0.5, 0.0, 0)
    manifest = {"config_hash": experiment.config.hash, "readout": "all", "task": "classification"}
    result = RunResult(Path("run"), experiment.config.table(), manifest, (agent,), "finished", 400, None, 0.0)
    return Personal(result, 0, experiment, params, 400, own_module=False)
