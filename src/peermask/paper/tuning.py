"""Learning rates and first weights: every method's are tried on held-out training data, and the best is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any

from peermask.files import read_json
from peermask.paper.cells import Defaults, Job, tuning_cell
from peermask.paper.outcome import Outcome
from peermask.paper.output_folder import OutputFolder
from peermask.paper.preset import ConfigPart, methods


@dataclass(frozen=True)
class Trial:
    """One candidate of a method's, and the run that tries it with one seed."""

    candidate: ConfigPart
    job: Job

    @property
    def name(self) -> str:
        return f"{format_choice(self.candidate)}, seed {self.job.config.seed}"


@dataclass(frozen=True)
class Tuning:
    """Choice of each method's options, from the outcomes of its trials, which are saved like all others."""

    defaults: Defaults
    home: OutputFolder
    seed: int  # the first one; the scale says how many there are
    _chosen: dict[str, ConfigPart] = field(default_factory=dict)  # outcomes never change once they are there

    def candidates(self, method: str) -> list[ConfigPart]:
        """Candidates of a method; once all were tried, also the best without the ELU on the logits."""
        listed = methods()[method].candidates
        reached = self._reached(method, listed) if self._varies_output(method) else []
        if not reached or len(reached) < len(listed) * len(self._seeds):
            return listed
        return [*listed, {**best(reached), "model": {"out_act": "none"}}]

    def trials(self, method: str) -> list[Trial]:
        """Every candidate with every tuning seed; none where there is nothing to choose."""
        candidates = self.candidates(method)
        return [] if len(candidates) == 1 else self._trials(method, candidates)

    def _trials(self, method: str, candidates: Sequence[ConfigPart]) -> list[Trial]:
        cells = [tuning_cell(method, seed) for seed in self._seeds]
        changes = {"rounds": rounds} if (rounds := self._rounds(method)) else {}
        return [Trial(one, self.defaults.job(cell, one, **changes)) for one in candidates for cell in cells]

    def _reached(self, method: str, candidates: Sequence[ConfigPart]) -> list[tuple[ConfigPart, Outcome]]:
        """Outcomes of the trials that were run."""
        outcomes = [(trial.candidate, self.home.outcome(trial.job)) for trial in self._trials(method, candidates)]
        return [(candidate, outcome) for candidate, outcome in outcomes if outcome is not None]

    def _varies_output(self, method: str) -> bool:
        model = self._tuning_config(method)["model"]
        return methods()[method].output_tuned and model["name"] == "alexnet" and "out_act" not in model

    def _rounds(self, method: str) -> int:
        """Rounds of a trial; 0: as many as the experiment has."""
        match methods()[method].tuned_for:
            case "short":
                return self.defaults.scale.tuning_rounds
            case "half":
                return int(self._tuning_config(method)["rounds"]) // 2
            case "whole":
                return 0

    def _tuning_config(self, method: str) -> ConfigPart:
        return self.defaults.table(tuning_cell(method, self.seed), {})

    def chosen(self, method: str) -> ConfigPart | None:
        """The chosen options; None until all candidates have been tried.

        What a folder's choices.json records stays chosen where the candidates have changed since.
        """
        if method not in self._chosen:
            candidates = self.candidates(method)
            reached = self._reached(method, candidates)
            if len(candidates) == 1:
                self._chosen[method] = candidates[0]
            elif len(reached) == len(candidates) * len(self._seeds):
                self._chosen[method] = best(reached)
            elif method in self._recorded:
                self._chosen[method] = self._recorded[method]["chosen"]
            else:
                return None
        return self._chosen[method]

    def record(self) -> dict[str, Any]:
        """Record of all tuned methods: the choice, where, what every candidate reached, and values at a grid's edge."""
        return {
            method: self._entry(method, chosen)
            for method in methods()
            if self.trials(method) and (chosen := self.chosen(method))
        }

    def _entry(self, method: str, chosen: ConfigPart) -> dict[str, Any]:
        trials = self.trials(method)
        if any(self.home.outcome(trial.job) is None for trial in trials):
            return dict(self._recorded[method])
        return {
            "chosen": chosen,
            "on": self._where(method),
            "at_edge": at_edge(chosen, self.candidates(method)),
            "tried": [self._line(trial) for trial in trials],
        }

    @cached_property
    def _recorded(self) -> Mapping[str, Any]:
        return read_json(self.home.choices) if self.home.choices.is_file() else {}

    @property
    def _seeds(self) -> range:
        return range(self.seed, self.seed + self.defaults.scale.tuning_seeds)

    def _where(self, method: str) -> str:
        rounds = f"{count} rounds" if (count := self._rounds(method)) else "all rounds"
        cell = tuning_cell(method, self.seed)
        others = f" to {self._seeds[-1]}" if len(self._seeds) > 1 else ""
        return f"{cell.name}{others}, {rounds}"

    def _line(self, trial: Trial) -> dict[str, Any]:
        outcome = self.home.outcome(trial.job)
        reached = None if outcome is None else outcome.validation
        return {
            "candidate": trial.candidate,
            "seed": trial.job.config.seed,
            "validation_accuracy": None if reached is None else round(reached, 4),
            "run": trial.job.key,
        }


def best(reached: Sequence[tuple[ConfigPart, Outcome]]) -> ConfigPart:
    """The candidate with the best mean over seeds; ties go to the smaller step.

    One that diverges with any seed is chosen only where all do.
    """
    candidates = list({format_choice(candidate): candidate for candidate, _ in reached}.values())

    def merit(candidate: ConfigPart) -> tuple[float, float]:
        values = [outcome.validation for one, outcome in reached if one == candidate]
        known = [value for value in values if value is not None]
        lr = candidate["algorithm"].get("lr", 0.0)
        return fmean(known) if len(known) == len(values) else -1.0, 0.0 if isinstance(lr, str) else -lr

    return max(candidates, key=merit)


def at_edge(chosen: ConfigPart, candidates: Sequence[ConfigPart]) -> list[str]:
    """Name the chosen numbers of the algorithm that are the smallest or the largest of three or more tried."""
    found = []
    for name, value in chosen["algorithm"].items():
        tried = {one["algorithm"].get(name, value) for one in candidates} - {"auto"}
        if len(tried) > 2 and not isinstance(value, str) and value in (min(tried), max(tried)):
            found.append(name)
    return found


def format_choice(candidate: ConfigPart) -> str:
    """`lr = 0.1, torch-default weights`."""
    options = [
        f"{name} = {value if isinstance(value, str) else format(value, 'g')}"
        for name, value in candidate["algorithm"].items()
    ]
    starts = [f"{candidate['frozen']['init']} weights"] if "frozen" in candidate else []
    last = {"elu": "ELU on the logits", "none": "no ELU on the logits"}
    outputs = [last[candidate["model"]["out_act"]]] if "model" in candidate else []
    return ", ".join([*options, *starts, *outputs])
