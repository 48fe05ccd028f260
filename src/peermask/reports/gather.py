"""Everything a report shows, gathered from run folders into plain values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peermask.errors import RunError
from peermask.experiment.result import RunResult
from peermask.reports.curves import Curves, read_curves, rounded, spread
from peermask.reports.labels import labels_of
from peermask.reports.run_detail import run_detail
from peermask.reports.source import Source, open_sources


@dataclass(frozen=True)
class Run:
    """One run, read."""

    source: Source
    curves: Curves
    label: str

    @property
    def result(self) -> RunResult:
        return self.source.result


def open_runs(paths: Sequence[Path], *, waiting: bool = False) -> list[Run]:
    """Runs and the arms of comparisons, fit to be shown on one page; `waiting` allows runs that just began."""
    sources = [source for path in paths for source in open_sources(path)]
    _check_comparable([source.result for source in sources])
    labels = labels_of([source.result.config for source in sources])
    runs = []
    for source, label in zip(sources, labels, strict=True):
        result = source.result
        curves = read_curves(source.rows("metrics.csv"), len(result.agents), result.figures)
        if not len(curves.rounds) and not waiting:
            every = result.config.evaluation.every
            raise RunError(
                f"{result.folder.path} has no evaluation yet, so there is nothing to report; "
                f"the first comes after round {every}: `peermask watch` shows a run from its start"
            )
        runs.append(Run(source, curves, label))
    return runs


def _check_comparable(results: list[RunResult]) -> None:
    first = results[0]
    for other in results[1:]:
        if other.manifest["dataset"]["sha256"] != first.manifest["dataset"]["sha256"]:
            raise RunError(
                f"{first.root} is on {first.manifest['dataset']['name']}, {other.root} on "
                f"{other.manifest['dataset']['name']}: runs on different data cannot be compared; report each by itself"
            )


def gather(runs: Sequence[Run]) -> dict[str, Any]:
    """The data of a page."""
    return {
        "series": [_series(group) for group in _groups(runs)],
        "runs": [run_detail(run.source, run.curves, run.label) for run in runs],
    }


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ only in the seed are one curve."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        table = run.result.config.table()
        for key in ("seed", "name"):
            table.pop(key, None)
        groups.setdefault(json.dumps(table, sort_keys=True), []).append(run)
    return list(groups.values())


def _series(group: list[Run]) -> dict[str, Any]:
    """One curve: over agents, and over seeds where there are several."""
    common = sorted(set.intersection(*(set(run.curves.rounds.tolist()) for run in group)))
    picks = [np.searchsorted(run.curves.rounds, common) for run in group]
    curves = [run.curves for run in group]
    measures = {}
    for name in curves[0].measures:
        stacks = [curve.measures[name][pick] for curve, pick in zip(curves, picks, strict=True)]  # [E, N] each
        measures[name] = spread(np.concatenate(stacks, axis=1))
        if len(group) > 1:
            means = np.stack([np.array(spread(stack)["mean"], float) for stack in stacks], 1)  # [E, seeds]
            over = spread(means)
            measures[name] |= {"seeds_min": over["min"], "seeds_max": over["max"]}
    sent = [np.nansum(curve.sent_bytes[pick], axis=1) for curve, pick in zip(curves, picks, strict=True)]
    seconds = [curve.seconds[pick] for curve, pick in zip(curves, picks, strict=True)]
    return {
        "label": group[0].label,
        "seeds": [run.result.config.seed for run in group],
        "rounds": common,
        "bytes": rounded(np.mean(sent, axis=0), 9) if common else [],
        "seconds": rounded(np.mean(seconds, axis=0)) if common else [],
        "measures": measures,
    }
