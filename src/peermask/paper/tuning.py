"""Learning rates and first weights: every method's are tried on held-out training data, and the best is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from peermask.paper.cells import Cell, Defaults, Job, tuning_cell
from peermask.paper.outcome import Outcome
from peermask.paper.output_folder import OutputFolder
from peermask.paper.preset import ConfigPart, methods


@dataclass(frozen=True)
class Trial:
    """One candidate of a method's, and the short run that tries it."""

    candidate: ConfigPart
    job: Job

    @property
    def name(self) -> str:
        return format_choice(self.candidate)


@dataclass(frozen=True)
class Tuning:
    """Choice of each method's options, from the outcomes of its trials, which are saved like all others."""

    defaults: Defaults
    home: OutputFolder
    seed: int
    _chosen: dict[str, ConfigPart] = field(default_factory=dict)  # outcomes never change once they are there

    def trials(self, method: str) -> list[Trial]:
        cell = self._cell(method)
        short = {"rounds": self.defaults.scale.tuning_rounds} if methods()[method].tuned_for == "short" else {}
        return [
            Trial(candidate, self.defaults.job(cell, candidate, **short)) for candidate in methods()[method].candidates
        ]

    def chosen(self, method: str) -> ConfigPart | None:
        """The chosen options; None until all candidates have been tried."""
        if method not in self._chosen:
            trials = self.trials(method)
            outcomes = [self.home.outcome(trial.job) for trial in trials]
            reached = [outcome for outcome in outcomes if outcome is not None]
            if len(reached) < len(trials):
                return None
            self._chosen[method] = best(trials, reached).candidate
        return self._chosen[method]

    def record(self) -> dict[str, Any]:
        """Record of all tuned methods: the choice, where, and what every candidate reached."""
        return {
            method: {
                "chosen": chosen,
                "on": self._where(method),
                "tried": [self._line(trial) for trial in self.trials(method)],
            }
            for method in methods()
            if (chosen := self.chosen(method)) is not None
        }

    def _cell(self, method: str) -> Cell:
        return tuning_cell(method, self.seed)

    def _where(self, method: str) -> str:
        short = methods()[method].tuned_for == "short"
        rounds = f"{self.defaults.scale.tuning_rounds} rounds" if short else "all rounds"
        return f"{self._cell(method).name}, {rounds}"

    def _line(self, trial: Trial) -> dict[str, Any]:
        outcome = self.home.outcome(trial.job)
        reached = None if outcome is None else outcome.validation
        return {
            "candidate": trial.candidate,
            "validation_accuracy": None if reached is None else round(reached, 4),
            "run": trial.job.key,
        }


def best(trials: Sequence[Trial], outcomes: Sequence[Outcome]) -> Trial:
    """The best trial; ties, and a method that never converges, go to the smaller step."""

    def merit(place: int) -> tuple[float, float]:
        reached = outcomes[place].validation
        return -1.0 if reached is None else reached, -float(trials[place].candidate["algorithm"]["lr"])

    return trials[max(range(len(trials)), key=merit)]


def format_choice(candidate: ConfigPart) -> str:
    """`lr = 0.1, torch-default weights`."""
    options = [f"{name} = {value:g}" for name, value in candidate["algorithm"].items()]
    start = candidate.get("frozen")
    return ", ".join([*options, *([f"{start['init']} weights"] if start else [])])
