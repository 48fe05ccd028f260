"""Learning rates and first weights are chosen on held-out data."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path

import pytest
from tiny_scale import DIGITS, tiny_defaults

from peermask.files import write_json
from peermask.paper.cells import Defaults, Job
from peermask.paper.outcome import Outcome
from peermask.paper.output_folder import OutputFolder
from peermask.paper.preset import ConfigPart, scales
from peermask.paper.tuning import Tuning, at_edge, format_choice, next_value

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
    pulls: list[ConfigPart] = [{"algorithm": {"pull": pull, "momentum": 0.5}} for pull in (0.3, 0.6)]
    assert at_edge(pulls[0], pulls) == []  # of an option that is not searched, two values have no inside


def test_next_values_go_beyond_an_edge_and_else_half_way_to_a_neighbour() -> None:
    def tried(*steps: float) -> list[ConfigPart]:
        return [{"algorithm": {"lr": lr, "momentum": 0.9}} for lr in steps]

    other: ConfigPart = {"algorithm": {"lr": 3.0, "momentum": 0.5}}  # not a neighbour
    one, tenth, hundredth = (candidates := tried(1.0, 0.1, 0.01))
    assert next_value("lr", one, [*candidates, other]) == 3.0
    assert next_value("lr", hundredth, candidates) == 0.0033
    assert next_value("lr", tenth, candidates) == 0.32
    assert next_value("lr", tenth, [*candidates, *tried(0.32)]) == 0.032
    assert next_value("lr", tenth, tried(0.1, 0.101, 0.099)) is None
    assert next_value("momentum", {"algorithm": {"lr": 1.0}}, candidates) is None


def test_further_values_and_the_network_without_its_last_elu_follow_the_grid(tuning: Tuning) -> None:
    """Validation falls with the distance of the learning rate to 2, beyond the grid."""
    paper, stages = replace(tuning, defaults=Defaults("paper", scales()["paper"])), []
    while paper.chosen("dsgd") is None:
        new = [trial for trial in paper.trials("dsgd") if paper.home.outcome(trial.job) is None]
        stages.append(format_choice(new[0].candidate))
        for trial in new:
            frozen, lr = trial.candidate["frozen"]["init"], trial.candidate["algorithm"]["lr"]
            value = 0.7 - 0.1 * abs(log(lr / 2)) + 0.01 * (frozen == "torch-default")
            paper.home.keep(trial.job, Outcome(config={}, validation=value))
    torch = "torch-default weights"
    assert stages[1:] == [f"lr = {lr}, {torch}" for lr in (3, 9, 5.2, 1.7)] + [
        f"lr = 1.7, {torch}, no ELU on the logits"
    ]
    assert paper.record()["dsgd"]["at_edge"] == []
    assert len(paper.record()["dsgd"]["tried"]) == 2 * (8 + 4 + 1)  # two seeds
    assert len(paper.candidates("mask-pm1")) == 4  # whose experiment says what follows the logits


def test_nothing_is_chosen_while_another_process_ends_the_last_trial_of_a_grid(tuning: Tuning) -> None:
    paper = replace(tuning, defaults=Defaults("paper", scales()["paper"]))
    for trial in paper.trials("dsgd"):
        paper.home.keep(trial.job, Outcome(config={}, validation=0.5))
    last = trial.job

    class Late(OutputFolder):
        """The last outcome is there from the second look on."""

        looks = 0

        def outcome(self, job: Job) -> Outcome | None:
            Late.looks += job == last
            return None if job == last and Late.looks == 1 else super().outcome(job)

    late = replace(paper, home=Late(paper.home.path), _listed={})
    assert late.chosen("dsgd") is None  # further settings follow the grid
    assert len(late.candidates("dsgd")) == 8 + 1


def test_while_the_best_lies_at_an_edge_more_is_tried_but_not_for_ever(tuning: Tuning) -> None:
    paper = replace(tuning, defaults=Defaults("paper", scales()["paper"]))
    while paper.chosen("mask-default") is None:  # the larger the better
        for trial in paper.trials("mask-default"):
            paper.home.keep(trial.job, Outcome(config={}, validation=1 - 1 / trial.candidate["algorithm"]["lr"] / 1e3))
    assert len(paper.candidates("mask-default")) == 4 + 2 * 4
    assert paper.record()["mask-default"]["at_edge"] == ["lr"]


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
