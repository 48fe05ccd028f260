"""The experiments at a scale that tests can afford: the same rows and columns, two rounds of a tiny network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peermask.data.digits import digits
from peermask.paper.campaign import Campaign
from peermask.paper.cells import Defaults
from peermask.paper.output_folder import OutputFolder
from peermask.paper.preset import Scale, merge, scales
from peermask.run.execution import Execution

DIGITS = digits()
SMALL = {
    "rounds": 2,
    "batch_size": 4,
    "data": {"fraction": 0.2},
    "model": {"name": "cnn", "channels": [2], "hidden": 4},
    "evaluation": {"every": 1},
}


def tiny_defaults() -> Defaults:
    config = merge(scales()["quick"].config, SMALL)
    return Defaults("quick", Scale(about="tiny", seeds=1, tuning_rounds=1, config=config))


def campaign(path: Path, *names: str, seeds: tuple[int, ...] = (0,), **execution: Any) -> Campaign:
    home = OutputFolder(path)
    home.open("quick", DIGITS, seeds[0])
    return Campaign(tiny_defaults(), home, DIGITS, names, seeds, Execution("cpu", workers=1, **execution))


class Told:
    """Remembers what was begun."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, done: int, total: int, name: str) -> None:
        assert 0 <= done < total
        self.names.append(name)
