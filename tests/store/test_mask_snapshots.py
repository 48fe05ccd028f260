"""Masks kept for reports: few, evenly spread, and read without trust."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from peermask.config.experiment import ExperimentConfig
from peermask.errors import RunError
from peermask.run.execution import Execution
from peermask.run.runner import resume_experiment, run_experiment
from peermask.store.folder import RunFolder
from peermask.store.mask_snapshots import KEPT, forget_masks_after, list_masks, load_masks, save_masks


def test_masks_are_kept_of_few_rounds_spread_over_the_run(tmp_path: Path) -> None:
    mask = np.array([[True, False, True]])
    for number in range(1, 3 * KEPT):
        save_masks(tmp_path, number, mask)
    rounds = list(list_masks(tmp_path))
    assert len(rounds) == KEPT
    assert (rounds[0], rounds[-1]) == (1, 3 * KEPT - 1)
    assert load_masks(list_masks(tmp_path)[1], 3).tolist() == mask.tolist()
    with np.load(list_masks(tmp_path)[1]) as file:  # as numpy itself would have written it
        assert file["masks"].tolist() == np.packbits(mask, axis=1).tolist()
    forget_masks_after(tmp_path, 1)
    assert list(list_masks(tmp_path)) == [1]


def test_damaged_masks_are_one_line(tmp_path: Path) -> None:
    path = save_masks(tmp_path, 1, np.ones((2, 9), bool))
    with pytest.raises(RunError, match="not of 100 weights"):
        load_masks(path, 100)
    path.write_bytes(b"PK nonsense")
    with pytest.raises(RunError, match="damaged"):
        load_masks(path, 9)


def test_a_run_keeps_the_masks_of_its_models_at_checkpoints(
    small: Callable[..., ExperimentConfig], tmp_path: Path
) -> None:
    result = run_experiment(small(), tmp_path / "a", execution=Execution("cpu"))
    held = list_masks(RunFolder(tmp_path / "a").masks)
    assert list(held) == [2, 4]
    masks = load_masks(held[4], result.manifest["weights"])
    assert masks.mean(1).tolist() == pytest.approx([agent.density for agent in result.agents], abs=1e-6)
    run_experiment(small(checkpoint={"every": 2, "masks": False}), tmp_path / "b", execution=Execution("cpu"))
    assert not RunFolder(tmp_path / "b").masks.exists()


def test_evaluations_say_when_they_were_and_a_resumed_run_goes_on_counting(
    small: Callable[..., ExperimentConfig], tmp_path: Path
) -> None:
    stop = iter([False, True])
    stopped = Execution("cpu", should_stop=lambda: next(stop))
    run_experiment(small(), tmp_path / "a", execution=stopped)
    result = resume_experiment(tmp_path / "a", Execution("cpu"))
    seconds = [row["seconds"] for row in result.metrics() if row["agent"] == 0]
    assert 0 < seconds[0] < seconds[1]
