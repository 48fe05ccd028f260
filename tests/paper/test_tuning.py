"""Learning rates and first weights are chosen on held-out data."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_scale import DIGITS, tiny_defaults

from peermask.paper.outcome import Outcome
from peermask.paper.output_folder import OutputFolder
from peermask.paper.tuning import Tuning

DEAD: dict[float, float | None] = {1.0: None, 0.1: None, 0.01: None, 0.001: None}


@pytest.fixture
def tuning(tmp_path: Path) -> Tuning:
    home = OutputFolder(tmp_path / "out")
    home.open("quick", DIGITS)
    return Tuning(tiny_defaults(), home, seed=5)


def reach(
    tuning: Tuning, start: str, reached: dict[float, float | None], test: dict[float, float] | None = None
) -> None:
    """Let DSGD's trials from these first weights come to this, by learning rate; None diverges."""
    for trial in tuning.trials("dsgd"):
        assert (trial.job.config.seed, trial.job.config.rounds) == (5, 1)
        if trial.job.config.frozen.init != start:
            continue
        lr = trial.job.config.algorithm.options.lr  # type: ignore[attr-defined]
        if (value := reached[lr]) is None:
            outcome = Outcome(config={}, diverged="the loss is nan")
        else:
            outcome = Outcome(config={}, validation=value, accuracy=(test or {}).get(lr, 0.5))
        tuning.home.keep(trial.job, outcome)


def choice(lr: float, start: str) -> dict[str, dict[str, object]]:
    return {"algorithm": {"lr": lr}, "frozen": {"init": start}}


def test_validation_decides_and_test_does_not(tuning: Tuning) -> None:
    reach(tuning, "kaiming-normal", {1.0: 0.3, 0.1: 0.5, 0.01: 0.5, 0.001: 0.2}, test={0.01: 0.99})
    reach(tuning, "torch-default", {1.0: 0.3, 0.1: 0.6, 0.01: 0.5, 0.001: 0.2})
    assert tuning.chosen("dsgd") == choice(0.1, "torch-default")


def test_nothing_is_chosen_before_all_are_tried(tuning: Tuning) -> None:
    reach(tuning, "torch-default", {1.0: 0.3, 0.1: 0.6, 0.01: 0.5, 0.001: 0.2})
    assert tuning.chosen("dsgd") is None
    assert tuning.record() == {}


def test_what_diverged_is_never_chosen(tuning: Tuning) -> None:
    reach(tuning, "kaiming-normal", {**DEAD, 0.01: 0.0})
    reach(tuning, "torch-default", DEAD)
    assert tuning.chosen("dsgd") == choice(0.01, "kaiming-normal")


def test_ties_go_to_the_smaller_step(tuning: Tuning) -> None:
    reach(tuning, "kaiming-normal", {1.0: None, 0.1: 0.4, 0.01: 0.3, 0.001: 0.1})
    reach(tuning, "torch-default", {1.0: None, 0.1: 0.4, 0.01: 0.4, 0.001: 0.1})
    assert tuning.chosen("dsgd") == choice(0.01, "torch-default")


def test_a_choice_is_recorded_with_all_that_was_tried(tuning: Tuning) -> None:
    reach(tuning, "kaiming-normal", {1.0: None, 0.1: 0.61234, 0.01: 0.5, 0.001: 0.2})
    reach(tuning, "torch-default", DEAD)
    entry = tuning.record()["dsgd"]
    assert entry["chosen"] == choice(0.1, "kaiming-normal")
    assert [one["validation_accuracy"] for one in entry["tried"]] == [None, 0.6123, 0.5, 0.2, None, None, None, None]
    assert entry["on"] == "table1: DSGD, c = 4, seed 5, 1 rounds"
