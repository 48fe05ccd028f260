"""Runs side by side on a GPU end with the hash they have alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from peermask.compute.network import Gradient
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import make_config
from peermask.data.arrays import from_arrays
from peermask.data.dataset import Dataset
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment
from peermask.run.side_by_side import play_side_by_side, runs_at_once

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def photographs() -> Dataset:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (1200, 3, 32, 32), dtype=np.uint8), np.arange(1200) % 10
    return from_arrays(images[:1000], labels[:1000], images[1000:], labels[1000:])


def config(seed: int, name: str) -> ExperimentConfig:
    return make_config(
        {
            "seed": seed,
            "agents": 6,
            "rounds": 4,
            "batch_size": 32,
            "retention": 0.3,
            "model": "alexnet",
            "algorithm": name,
            "partition": {"name": "labels", "labels_per_agent": 3},
            "evaluation": {"every": 4},
        }
    )


@pytest.mark.parametrize("name", ["mce-pl", "accord", "dsgd"])
def test_each_ends_with_the_hash_it_has_alone(tmp_path: Path, name: str) -> None:
    dataset = photographs()
    configs = [config(seed, name) for seed in range(3)]
    assert runs_at_once(configs[0], dataset, torch.device("cuda")) > 1
    places = {id(each): tmp_path / str(number) for number, each in enumerate(configs)}

    def play(each: ExperimentConfig, gradient: Gradient | None) -> RunResult:
        execution = Execution("cuda", gradient=gradient)
        folder = places[id(each)] / ("alone" if gradient is None else "beside")
        return run_experiment(each, folder, execution=execution, dataset=dataset)

    alone = [play(each, None).hash for each in configs]
    beside = play_side_by_side(configs, play)
    assert [run.hash for run in beside if isinstance(run, RunResult)] == alone
