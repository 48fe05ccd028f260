"""The table of a sweep, sweep.csv: a row for each variation and algorithm, over its seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from statistics import fmean, stdev

from peermask.experiment.agent_result import LAST_EVALUATIONS, mean_of
from peermask.experiment.result import RunResult
from peermask.files import write_atomically


@dataclass(frozen=True)
class Row:
    """The results of a variation with one algorithm, over its seeds."""

    variation: str
    algorithm: str
    validation: tuple[float, ...]  # a run's mean over agents and its last evaluations, on held-out data
    test: tuple[float, ...]
    sent_bytes: float
    figure: str = "accuracy"  # the one that counts

    @property
    def seeds(self) -> int:
        return len(self.test)


def row_of(variation: str, algorithm: str, results: Sequence[RunResult]) -> Row:
    tails = [_tail(result) for result in results]
    sent = fmean(result.sent_bytes for result in results)
    return Row(
        variation,
        algorithm,
        tuple(tail[0] for tail in tails),
        tuple(tail[1] for tail in tails),
        sent,
        results[0].main_figure,
    )


def _tail(result: RunResult) -> tuple[float, float]:
    """Held-out and test accuracy, or other main figure, over agents and the last evaluations: a single one varies."""
    rows = result.metrics()
    late = sorted({row["round"] for row in rows})[-LAST_EVALUATIONS:]
    tail = [row for row in rows if row["round"] in late]
    main = result.main_figure
    return mean_of(row[f"validation_{main}"] for row in tail), mean_of(row[f"test_{main}"] for row in tail)


def best(rows: Sequence[Row]) -> Row | None:
    """By held-out data; None where nothing is held out."""
    known = [row for row in rows if not isnan(spread(row.validation)[0])]
    return max(known, key=lambda row: spread(row.validation)[0], default=None)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and standard deviation of a sample; the latter unknown of one."""
    return fmean(values), stdev(values) if len(values) > 1 else nan


def write_table(root: Path, rows: Sequence[Row]) -> Path:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    main = rows[0].figure if rows else "accuracy"
    measures = (f"validation_{main}", "validation_deviation", f"test_{main}", "test_deviation", "sent_bytes")
    table.writerow(("variation", "algorithm", "seeds", *measures))
    for row in rows:
        figures = (*spread(row.validation), *spread(row.test), row.sent_bytes)
        table.writerow((row.variation, row.algorithm, row.seeds, *(f"{figure:.6g}" for figure in figures)))
    write_atomically(root / "sweep.csv", text.getvalue().encode())
    return root / "sweep.csv"
