"""Learning rates: every method's are tried on held-out training data, and the choice is written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peermask.experiment.folder import read_json, write_json
from peermask.reproduce.cells import Frame, Job, tuning_cell
from peermask.reproduce.home import Home
from peermask.reproduce.outcome import Outcome
from peermask.reproduce.preset import Table, methods

Play = Callable[[Job, str], Outcome]


@dataclass(frozen=True)
class Tuning:
    frame: Frame
    home: Home
    seed: int

    def recorded(self) -> dict[str, Any]:
        return read_json(self.home.choices) if self.home.choices.is_file() else {}

    def chosen(self, method: str) -> Table | None:
        """What was chosen for a method, if that has been done."""
        entry = self.recorded().get(method)
        return None if entry is None else entry["chosen"]

    def choose(self, method: str, play: Play) -> Table:
        """Try the grid and record it. Ties, and a grid of which nothing converges, go to the smaller step."""
        if (known := self.chosen(method)) is not None:
            return known
        cell = tuning_cell(method, self.seed)
        tried: list[tuple[Table, float | None, str]] = []
        for options in methods()[method].grid:
            job = self.frame.job(cell, options, rounds=self.frame.scale.tuning_rounds)
            outcome = play(job, f"learning rate of {method}: {shown(options)}")
            tried.append((options, outcome.validation, job.key))
        best = max(tried, key=lambda one: (-1.0 if one[1] is None else one[1], -float(one[0]["lr"])))
        entry = {
            "chosen": best[0],
            "on": f"{cell.name}, {self.frame.scale.tuning_rounds} rounds",
            "tried": [
                {"options": options, "validation_accuracy": reached and round(reached, 4), "run": run}
                for options, reached, run in tried
            ],
        }
        write_json(self.home.choices, {**self.recorded(), method: entry})
        return best[0]


def shown(options: Table) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in options.items())
