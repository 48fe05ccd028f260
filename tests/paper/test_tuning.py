"""Learning rates and first weights are chosen on held-out data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_scale import DIGITS, tiny_defaults

from peermask.files import write_json
from peermask.paper.cells import Defaults
from peermask.paper.outcome import Outcome
from peermask.paper.output_folder import OutputFolder
from peermask.paper.preset import ConfigPart, scales
from peermask.paper.tuning import Tuning, at_edge, format_choice

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


def two_seeds(tuning: Tuning, reached: dict[float, tuple[float | None, float | None]]) -> Tuning:
    """MCE-PL's trials with seeds 5 and 6 came to this, by learning rate."""
    scale = tuning.defaults.scale.model_copy(update={"tuning_seeds": 2})
    both = replace(tuning, defaults=replace(tuning.defaults, scale=scale))
    for trial in both.trials("mce-pl"):
        value = reached.get(trial.candidate["algorithm"]["lr"], (0.1, 0.1))[trial.job.config.seed - 5]
        both.home.keep(trial.job, Outcome(config={}, validation=value, diverged=None if value else "nan"))
    return both


def test_the_mean_over_seeds_decides_and_a_seed_that_diverges_excludes(tuning: Tuning) -> None:
    both = two_seeds(tuning, {10.0: (0.9, None), 1.0: (0.5, 0.7), 0.1: (0.65, 0.5)})
    assert both.chosen("mce-pl") == {"algorithm": {"lr": 1.0}}
    entry = both.record()["mce-pl"]
    assert [one["seed"] for one in entry["tried"][:2]] == [5, 6]
    assert entry["on"].endswith("c = 4, seed 5 to 6, 1 rounds")


def test_values_at_an_edge_are_named() -> None:
    tried: list[ConfigPart] = [{"algorithm": {"lr": lr, "step": "relative"}} for lr in (1.0, 0.1, 0.01)]
    assert at_edge(tried[0], tried) == at_edge(tried[2], tried) == ["lr"]
    assert at_edge(tried[1], tried) == []
    assert at_edge(tried[0], tried[:2]) == []  # two values have no inside


def test_the_best_is_tried_without_the_last_elu_of_the_papers_network(tuning: Tuning) -> None:
    paper = replace(tuning, defaults=Defaults("paper", scales()["paper"]))
    assert len(paper.candidates("dsgd")) == len(tuning.candidates("dsgd")) == 8
    for trial in (trials := paper.trials("dsgd")):
        value = 0.7 if trial.candidate == choice(0.1, "torch-default") else 0.4
        paper.home.keep(trial.job, Outcome(config={}, validation=value))
    assert len(trials) == 16  # two seeds
    assert paper.chosen("dsgd") is None
    without = {**choice(0.1, "torch-default"), "model": {"out_act": "none"}}
    again = paper.trials("dsgd")[16:]
    assert [trial.candidate for trial in again] == [without] * 2
    for trial in again:
        paper.home.keep(trial.job, Outcome(config={}, validation=0.8))
    assert paper.chosen("dsgd") == without
    assert len(paper.record()["dsgd"]["tried"]) == 18
    assert len(paper.candidates("mask-pm1")) == 4  # dslth sets it


def test_trials_of_the_best_methods_take_half_of_the_rounds(tuning: Tuning) -> None:
    paper = replace(tuning, defaults=Defaults("paper", scales()["paper"]))
    assert {trial.job.config.rounds for trial in paper.trials("dsgd-best")} == {200}
    assert {trial.job.config.rounds for trial in paper.trials("dsgd")} == {100}


def test_a_recorded_choice_stays_where_the_grid_has_changed(tuning: Tuning) -> None:
    entry = {"chosen": choice(0.5, "kaiming-normal"), "on": "table1", "tried": []}
    write_json(tuning.home.choices, {"dsgd": entry})
    assert tuning.chosen("dsgd") == entry["chosen"]
    assert tuning.record() == {"dsgd": entry}


def test_a_single_candidate_needs_no_trial(tuning: Tuning) -> None:
    assert tuning.trials("accord-plain") == []
    assert tuning.chosen("accord-plain") == {"algorithm": {"own_votes": 5, "personal_from": 0.5, "personal_lr": 0.25}}


def test_a_choice_as_text() -> None:
    candidate: ConfigPart = {
        "algorithm": {"lr": 0.10, "step": "relative"},
        "frozen": {"init": "torch-default"},
        "model": {"out_act": "none"},
    }
    assert format_choice(candidate) == "lr = 0.1, step = relative, torch-default weights, no ELU on the logits"
