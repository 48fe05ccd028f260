"""The result of each agent of a run, from the run's manifest and metrics.csv."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from math import nan
from typing import Any

import numpy as np

from peermask.store.arrays import Table, mean_known

BY_READOUT = ("test_accuracy_all", "test_accuracy_own", "test_accuracy_weighted")


@dataclass(frozen=True)
class AgentResult:
    """What one agent reached; accuracies and figures are reported ones: see `store/arrays.py`."""

    agent: int
    labels: tuple[int, ...]
    retention: float
    density: float
    test_accuracy: float  # by the readout that counts; unknown for tasks that have none
    test_accuracy_last: float  # of the last evaluation alone: that of the exported model
    sent_bytes: float
    links: int
    test_accuracy_all: float = nan  # with answers among all labels
    test_accuracy_own: float = nan  # likewise, among the agent's own
    liar: bool = False  # sent lies, as the config asked for; means are those of the honest
    test_accuracy_weighted: float = nan  # by the readout that counts, labels weighted as in the agent's training data
    figures: dict[str, float] = field(default_factory=dict)  # all of the task, on test samples, by name

    def value(self, figure: str) -> float:
        """Any figure by name: of this row, or of the task; NaN if it is not known."""
        return float(getattr(self, figure, self.figures.get(figure, nan)))


NUMBERS = tuple(each.name for each in fields(AgentResult) if each.type in ("int", "float"))  # fields with a mean


def agent_results(manifest: dict[str, Any], table: Table) -> list[AgentResult]:
    """Read each agent's row of the manifest, and its columns of metrics.csv."""
    figures = {name: table.reported(f"test_{name}") for name in manifest["figures"]}  # [N] each
    density, sent = table.last("density"), np.nan_to_num(table.last("sent_bytes"))
    unknown = np.full(len(density), nan)
    labelled = "accuracy" in figures
    last = table.last("test_accuracy") if labelled else unknown
    return [
        AgentResult(
            agent=agent,
            labels=tuple(about["labels"]),
            retention=about["retention"],
            density=float(density[agent]),
            test_accuracy=float(figures.get("accuracy", unknown)[agent]),
            test_accuracy_last=float(last[agent]),
            sent_bytes=float(sent[agent]),
            links=about["links"],
            liar=about.get("liar", False),
            figures={name: float(values[agent]) for name, values in figures.items()},
            **{name: float(figures.get(name.removeprefix("test_"), unknown)[agent]) for name in BY_READOUT},
        )
        for agent, about in enumerate(manifest["agents"])
    ]


def mean_of(values: Iterable[float]) -> float:
    """Average the values that are known; NaN if none is."""
    return mean_known(np.fromiter(values, np.float64))
