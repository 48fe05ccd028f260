"""The default experiment: agents learn, and learn better together."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from peermask.config.file import load_config
from peermask.run.runner import run_experiment


@pytest.mark.long
def test_accord_beats_chance_and_learning_alone_by_five_points_over_three_seeds(tmp_path: Path) -> None:
    together, alone = [], []
    for seed in range(3):
        config = load_config(overrides=[f"seed={seed}", "evaluation.every=60"])
        result = run_experiment(config, tmp_path / str(seed))
        together.append(result.mean_accuracy)
        alone.append(result.compared[0].mean_accuracy)
    chance = 1 / 5  # five labels an agent
    assert fmean(together) > chance + 0.5
    assert fmean(together) > fmean(alone) + 0.05
