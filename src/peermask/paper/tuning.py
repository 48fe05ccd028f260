"""Learning rates and first weights: every method's are tried on held-out training data, and the best is used.

First a method's grid, then as many further settings as the scale says. Each changes one number of the best so far
(`searched`): beyond what was tried where the best lies at an edge, and else half-way to a neighbour. While the best
lies at an edge more are tried, up to twice as many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
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
    _listed: dict[str, list[ConfigPart]] = field(default_factory=dict)  # candidates known so far, by method

    def candidates(self, method: str) -> list[ConfigPart]:
        """Candidates of a method that are known: more follow once all of these have been tried."""
        listed = self._listed.setdefault(method, methods()[method].candidates)
        while len(listed) > 1 and (reached := self._all_reached(method, listed)) is not None:
            candidate = self._next(method, listed, best(reached))
            if candidate is None:
                break
            listed = self._listed[method] = [*listed, candidate]
        return listed

    def _next(self, method: str, listed: Sequence[ConfigPart], chosen: ConfigPart) -> ConfigPart | None:
        """The candidate to try after those listed, of which one is the best; None after the last."""
        own, further = methods()[method], self.defaults.scale.further_trials
        tried = len(listed) - len(own.candidates)
        if "model" in listed[-1]:
            return None
        edges = [name for name in own.searched if name in at_edge(chosen, listed, own.searched)]
        if tried < further or (edges and tried < 2 * further):
            name = edges[0] if edges else own.searched[tried % len(own.searched)]
            if (value := next_value(name, chosen, listed)) is not None:
                return {**chosen, "algorithm": {**chosen["algorithm"], name: value}}
        return {**chosen, "model": {"out_act": "none"}} if self._varies_output(method) else None

    def trials(self, method: str) -> list[Trial]:
        """Every candidate with every tuning seed; none where there is nothing to choose."""
        candidates = self.candidates(method)
        return [] if len(candidates) == 1 else self._trials(method, candidates)

    def _trials(self, method: str, candidates: Sequence[ConfigPart]) -> list[Trial]:
        cells = [tuning_cell(method, seed) for seed in self._seeds]
        changes = {"rounds": rounds} if (rounds := self._rounds(method)) else {}
        return [Trial(one, self.defaults.job(cell, one, **changes)) for one in candidates for cell in cells]

    def _all_reached(self, method: str, candidates: Sequence[ConfigPart]) -> list[tuple[ConfigPart, Outcome]] | None:
        """Outcomes of the trials; None before all have been run."""
        outcomes = [(trial.candidate, self.home.outcome(trial.job)) for trial in self._trials(method, candidates)]
        known = [(candidate, outcome) for candidate, outcome in outcomes if outcome is not None]
        return known if len(known) == len(outcomes) else None

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
            if len(candidates) == 1:
                self._chosen[method] = candidates[0]
            elif (reached := self._all_reached(method, candidates)) is not None:
                if len(self.candidates(method)) > len(candidates):  # another process ended the last of them meanwhile
                    return None
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
            "at_edge": at_edge(chosen, self.candidates(method), methods()[method].searched),
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


def at_edge(chosen: ConfigPart, candidates: Sequence[ConfigPart], searched: Sequence[str] = ("lr",)) -> list[str]:
    """Name the chosen numbers of the algorithm that are the smallest or the largest tried: of a searched option among
    candidates that are equal otherwise, of another where there are three or more."""
    found = []
    for name, value in chosen["algorithm"].items():
        tried = _tried(name, chosen if name in searched else None, candidates)
        if value in tried and (name in searched or len(tried) > 2) and value in (tried[0], tried[-1]):
            found.append(name)
    return found


def next_value(name: str, chosen: ConfigPart, candidates: Sequence[ConfigPart]) -> float | None:
    """Three times the largest value tried, or a third of the smallest, where that is the best; else a value half-way,
    as factors count, to the farther of its neighbours. None where there is nothing new at two digits."""
    tried, value = _tried(name, chosen, candidates), chosen["algorithm"].get(name)
    if value not in tried or value <= 0:
        return None
    above, below = [each for each in tried if each > value], [each for each in tried if each < value]
    if not above:
        wanted = 3 * value
    elif not below:
        wanted = value / 3
    else:
        wanted = sqrt(value * (above[0] if above[0] / value >= value / below[-1] else below[-1]))
    rounded = float(f"{wanted:.2g}")
    return None if rounded in tried else rounded


def _tried(name: str, like: ConfigPart | None, candidates: Sequence[ConfigPart]) -> list[float]:
    """The numbers tried for an option, in order; `like` a candidate: only where all other options are the same."""

    def others(candidate: ConfigPart) -> ConfigPart:
        return {**candidate, "algorithm": {**candidate["algorithm"], name: None}, "model": None}

    alike = [one for one in candidates if like is None or others(one) == others(like)]
    values = {one["algorithm"].get(name) for one in alike}
    return sorted(value for value in values if isinstance(value, int | float))


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
