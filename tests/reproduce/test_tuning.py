"""Learning rates are chosen on held-out data, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_scale import DIGITS, tiny_frame

from peermask.reproduce.cells import Job
from peermask.reproduce.home import Home
from peermask.reproduce.outcome import Outcome
from peermask.reproduce.tuning import Tuning


@pytest.fixture
def tuning(tmp_path: Path) -> Tuning:
    home = Home(tmp_path / "out")
    home.open("quick", DIGITS)
    return Tuning(tiny_frame(), home, seed=5)


class Bench:
    """Runs that reach what the test says, by learning rate; None diverges."""

    def __init__(self, reached: dict[float, float | None], test: dict[float, float] | None = None) -> None:
        self.reached, self.test, self.played = reached, test or {}, 0

    def __call__(self, job: Job, name: str) -> Outcome:
        self.played += 1
        assert (job.config.seed, job.config.rounds) == (5, 1)
        assert "dsgd" in name
        lr = job.config.algorithm.options.lr  # type: ignore[attr-defined]
        if self.reached[lr] is None:
            return Outcome(config={}, diverged="the loss is nan")
        return Outcome(config={}, validation=self.reached[lr], accuracy=self.test.get(lr, 0.5))


def test_validation_decides_and_test_does_not(tuning: Tuning) -> None:
    bench = Bench({1.0: 0.3, 0.1: 0.6, 0.01: 0.5, 0.001: 0.2}, test={0.01: 0.99})
    assert tuning.choose("dsgd", bench) == {"lr": 0.1}


def test_what_diverged_is_never_chosen(tuning: Tuning) -> None:
    assert tuning.choose("dsgd", Bench({1.0: None, 0.1: None, 0.01: 0.0, 0.001: None})) == {"lr": 0.01}


def test_ties_go_to_the_smaller_step(tuning: Tuning) -> None:
    assert tuning.choose("dsgd", Bench({1.0: None, 0.1: 0.4, 0.01: 0.4, 0.001: 0.1})) == {"lr": 0.01}


def test_a_choice_is_recorded_with_all_that_was_tried_and_not_made_again(tuning: Tuning) -> None:
    bench = Bench({1.0: None, 0.1: 0.61234, 0.01: 0.5, 0.001: 0.2})
    assert tuning.chosen("dsgd") is None
    tuning.choose("dsgd", bench)
    assert tuning.choose("dsgd", bench) == tuning.chosen("dsgd") == {"lr": 0.1}
    assert bench.played == 4
    entry = tuning.recorded()["dsgd"]
    assert [one["validation_accuracy"] for one in entry["tried"]] == [None, 0.6123, 0.5, 0.2]
    assert entry["on"] == "table1: DSGD, c = 4, seed 5, 1 rounds"
