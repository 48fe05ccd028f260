"""One self-contained HTML page: data, drawing code and style in a single file that needs no network."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from peermask.config.experiment import ExperimentConfig
from peermask.errors import RunError
from peermask.files import as_path, read_json, write_atomically
from peermask.reports.sections import run_detail, sweep_data
from peermask.reports.source import Curves, Source, curves_of, open_sources, rounded, spread
from peermask.run.result import RunResult
from peermask.store.sweeps import SWEEP, SweepFolder
from peermask.task import flatten

# Names for the curves of a comparison: the algorithm, and the keys in which runs differ.

_SILENT = ("seed", "name", "imports", "algorithm.name")
_MOST = 3  # differences named; more would not be read
DETAILED = 12  # runs with pictures of masks, which are most of a page's bytes


def labels_of(configs: Sequence[ExperimentConfig]) -> list[str]:
    """`mce-pl`, or `mce-pl, graph.p 0.3` where that is what differs among runs of mce-pl."""
    flat = [flatten(config.table()) for config in configs]
    labels = []
    for config, own in zip(configs, flat, strict=True):
        same = [other for other in flat if other["algorithm.name"] == own["algorithm.name"]]
        differing = [key for key in own if key not in _SILENT and any(other.get(key) != own[key] for other in same)]
        parts = [f"{key} {own[key]}" for key in differing[:_MOST]]
        labels.append(", ".join([config.algorithm.name, *parts]))
    return labels


# Everything a report shows, gathered from run folders into plain values.


@dataclass(frozen=True)
class Run:
    """One run, read."""

    source: Source
    curves: Curves
    label: str

    @property
    def result(self) -> RunResult:
        return self.source.result

    @property
    def evaluated(self) -> bool:
        return len(self.curves.rounds) > 0


def open_runs(paths: Sequence[Path], *, waiting: bool = False) -> list[Run]:
    """Runs and the arms of comparisons, fit to be shown on one page; `waiting` allows runs that just began."""
    sources = [source for path in paths for source in open_sources(path)]
    if not any((path / SWEEP).is_file() for path in paths):  # which may vary its data
        _check_comparable([source.result for source in sources])
    labels = labels_of([source.result.config for source in sources])
    runs = []
    for source, label in zip(sources, labels, strict=True):
        result = source.result
        curves = curves_of(source.table("metrics.csv"), result.figures)
        runs.append(Run(source, curves, label))
    if not waiting and not any(run.evaluated for run in runs):
        raise RunError(f"{_why_empty(runs[0])}, so there is nothing to report")
    return runs


def _why_empty(run: Run) -> str:
    result = run.result
    if result.status == "diverged":
        why = read_json(result.folder.diverged).get("message")
        return f"{result.folder.path} diverged before its first evaluation ({why})"
    return (
        f"{result.folder.path} has no evaluation yet: the first comes after round {result.config.evaluation.every}, "
        "and `peermask watch` shows a run from its start"
    )


def _check_comparable(results: list[RunResult]) -> None:
    first = results[0]
    for other in results[1:]:
        if other.manifest["dataset"]["sha256"] != first.manifest["dataset"]["sha256"]:
            raise RunError(
                f"{first.root} is on {first.manifest['dataset']['name']}, {other.root} on "
                f"{other.manifest['dataset']['name']}: runs on different data cannot be compared; report each by itself"
            )


def gather(paths: Sequence[Path], *, waiting: bool = False) -> dict[str, Any]:
    """The data of a page. Runs without an evaluation, and copies of a run, are left out and named in `notes`."""
    runs = open_runs(paths, waiting=waiting)
    begun = [run for run in runs if run.evaluated] or runs  # a live page may have to wait for all
    notes = [f"Left out: {_why_empty(run)}." for run in runs if not run.evaluated and begun is not runs]
    shown: list[Run] = []
    groups: dict[str, dict[int, int]] = {}  # runs that differ only in the seed are one curve: places by seed
    for run in begun:
        table = run.result.config.table()
        seed = table.pop("seed")
        table.pop("name", None)
        group = groups.setdefault(json.dumps(table, sort_keys=True), {})
        if seed in group:
            first = shown[group[seed]].result.folder.path
            notes.append(f"Left out: {run.result.folder.path}, which has the config and seed of {first}.")
        else:
            group[seed] = len(shown)
            shown.append(run)
    if len(shown) > DETAILED:
        notes.append(f"Masks are those of the first {DETAILED} runs; a report of one run has its own.")
    data = {
        "series": [_series([shown[place] for place in group.values()], [*group.values()]) for group in groups.values()],
        "runs": [run_detail(run.source, run.curves, run.label, masks=n < DETAILED) for n, run in enumerate(shown)],
        "notes": notes,
    }
    if len(paths) == 1 and (paths[0] / SWEEP).is_file():
        series = [[shown[place].result.folder.path for place in group.values()] for group in groups.values()]
        data["sweep"] = sweep_data(SweepFolder.open(paths[0]), series)
    return data


def _series(group: list[Run], places: list[int]) -> dict[str, Any]:
    """One curve: over agents, and over seeds where there are several; `places` are those of its runs on the page."""
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
        "runs": places,
        "rounds": common,
        "bytes": rounded(np.mean(sent, axis=0), 9) if common else [],
        "seconds": rounded(np.mean(seconds, axis=0)) if common else [],
        "measures": measures,
    }


SCRIPTS = ("uplot", "dom", "save", "curves", "network", "masks", "traffic", "faults", "tables", "sweep", "data", "page")
STYLES = ("uplot", "page")
TITLED = 4


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write report.html about one run or several; without `out`, into the run's folder, or here for several."""
    paths = list(dict.fromkeys(paths))  # a run given twice is drawn once
    page = render(gather(paths), title_of(paths))  # what is wrong with a run is no trouble with writing
    folder = out if out is not None else (paths[0] if len(paths) == 1 else Path())
    target = folder / "report.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(target, page.encode())
    except (OSError, RunError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        reason = getattr(cause, "strerror", None) or str(cause)
        raise RunError(f"cannot write {target}: {reason}; give a folder that can be written with --out") from error
    return target


def report(runs: RunResult | Path | str | Sequence[RunResult | Path | str], out: Path | str | None = None) -> Path:
    """Write a page about one run, or about several to compare them.

    Args:
        runs: A result or its run folder, or several of these.
        out: The folder to write to; the run's own, or the current one for several runs.

    Returns:
        The path of `report.html`, which opens from disk and needs no network.

    Raises:
        RunError: A folder is not a run, is damaged, or cannot be written to.

    Examples:
        >>> import peermask
        >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
        >>> result = peermask.run_experiment(config, "run")
        >>> peermask.report(result).name
        'report.html'
    """
    several = [runs] if isinstance(runs, str) or not isinstance(runs, Sequence) else runs
    if not several:
        raise RunError("runs is empty; give a result or a run folder")
    paths = [each.root if isinstance(each, RunResult) else as_path(each, "runs") for each in several]
    return write_report(paths, None if out is None else as_path(out, "out"))


def title_of(paths: Sequence[Path]) -> str:
    """The folders' names, as many as a heading holds."""
    names = [path.resolve().name for path in paths]
    more = f" and {len(names) - TITLED} more" if len(names) > TITLED else ""
    return " · ".join(names[:TITLED]) + more


def render(data: dict[str, Any], title: str, *, live: bool = False) -> str:
    """The page; a live one asks for its data again and again."""
    parts = {
        "title": html.escape(title),
        "style": "\n".join(_asset(f"{name}.css") for name in STYLES),
        "data": as_json({"title": title, "live": live, **data}),
        "script": "\n".join(_asset(f"{name}.js") for name in SCRIPTS),
    }
    # In one pass: inserted text is not searched again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def as_json(content: dict[str, Any]) -> str:
    """JSON that is safe inside a script element, with any text."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("peermask.reports").joinpath("assets", name).read_text(encoding="utf-8")
