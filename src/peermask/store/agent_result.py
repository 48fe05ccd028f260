"""What each agent of a run reached, from the run's manifest and metrics.csv."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from math import isnan, nan
from statistics import fmean
from typing import Any

BY_READOUT = ("test_accuracy_all", "test_accuracy_own", "test_accuracy_weighted")
LAST_EVALUATIONS = 10  # that a reported accuracy is averaged over: a single one varies from round to round


@dataclass(frozen=True)
class AgentResult:
    agent: int
    labels: tuple[int, ...]
    retention: float
    density: float
    test_accuracy: float  # of the last evaluation, by the readout that counts; unknown for tasks that have none
    test_accuracy_tail: float  # mean of the last ten
    sent_bytes: float
    links: int
    test_accuracy_all: float = nan  # of the last evaluation, with answers among all labels
    test_accuracy_own: float = nan  # likewise, among the agent's own
    liar: bool = False  # sent lies, as the config asked for; means are those of the honest
    test_accuracy_weighted: float = nan  # by the readout that counts, labels weighted as in the agent's training data
    figures: dict[str, float] = field(default_factory=dict)  # all of the last evaluation's, on test samples, by name

    def value(self, figure: str) -> float:
        """Any figure by name: of this row, or of the last evaluation; NaN if it is not known."""
        return float(getattr(self, figure, self.figures.get(figure, nan)))


NUMBERS = tuple(each.name for each in fields(AgentResult) if each.type in ("int", "float"))  # fields with a mean


def agent_results(manifest: dict[str, Any], rows: list[dict[str, str]]) -> list[AgentResult]:
    """`rows` are those of metrics.csv."""
    results, of_agent = [], defaultdict[int, list[dict[str, str]]](list)
    for row in rows:
        of_agent[int(row["agent"])].append(row)
    figures = manifest.get("figures", ["accuracy"])
    for known in manifest["agents"]:
        own = of_agent[known["agent"]]
        accuracies = [float(row["test_accuracy"]) for row in own] if figures[0] == "accuracy" else []
        results.append(
            AgentResult(
                agent=known["agent"],
                labels=tuple(known["labels"]),
                retention=known["retention"],
                density=float(own[-1]["density"]) if own else nan,
                test_accuracy=accuracies[-1] if accuracies else nan,
                test_accuracy_tail=mean_of(accuracies[-LAST_EVALUATIONS:]),
                sent_bytes=float(own[-1]["sent_bytes"]) if own else 0.0,
                links=known["links"],
                liar=known.get("liar", False),
                figures={name: float(own[-1].get(f"test_{name}", nan)) for name in figures} if own else {},
                **(_by_readout(own[-1]) if accuracies else {}),
            )
        )
    return results


def _by_readout(row: dict[str, str]) -> dict[str, float]:
    """Tables of earlier versions have one accuracy, with answers among all labels."""
    known = {"test_accuracy_all": row["test_accuracy"], **row}
    return {name: float(known.get(name, nan)) for name in BY_READOUT}


def mean_of(values: Iterable[float]) -> float:
    """Of those that are known; NaN if none is."""
    known = [value for value in values if not isnan(value)]
    return fmean(known) if known else nan
