"""Sweeps: one experiment with some of its keys varied, over several seeds, in one folder.

    sweep.json               the config that is varied
    VARIATION/seed-N/        an ordinary run, or a comparison
    sweep.csv                a row for each variation and algorithm

Runs are claimed by locks, so that several processes may share the folder; what is finished is not run again, and more
values or seeds may be added later.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path
from statistics import fmean, stdev

from peermask.config.experiment import ExperimentConfig
from peermask.config.file import flatten, load_config
from peermask.data import datasets
from peermask.data.dataset import Dataset
from peermask.errors import ConfigError, DivergedError, RunError
from peermask.files import read_json, try_lock, write_atomically, write_json
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.resume import is_over
from peermask.run.runner import run_experiment
from peermask.store.arrays import mean_known
from peermask.store.folder import RunFolder

# The table of a sweep, sweep.csv: a row for each variation and algorithm, over its seeds.


@dataclass(frozen=True)
class Row:
    """The results of a variation with one algorithm, over its seeds."""

    variation: str
    algorithm: str
    validation: tuple[float, ...]  # of each run, over honest agents, on held-out data: see store/arrays.py
    test: tuple[float, ...]
    sent_bytes: float
    figure: str = "accuracy"  # the one that counts

    @property
    def seeds(self) -> int:
        return len(self.test)


def row_of(variation: str, algorithm: str, results: Sequence[RunResult]) -> Row:
    main = results[0].main_figure
    return Row(
        variation,
        algorithm,
        tuple(_mean(result, f"validation_{main}") for result in results),
        tuple(result.mean(main) for result in results),
        fmean(result.sent_bytes for result in results),
        main,
    )


def _mean(result: RunResult, column: str) -> float:
    """Average a reported figure over honest agents."""
    honest = [not agent.liar for agent in result.agents]
    return mean_known(result.evaluations().reported(column)[honest])


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


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    variation: str  # `algorithm.lr=0.3, graph.p=0.5`; empty if only seeds differ
    config: ExperimentConfig
    path: Path


@dataclass(frozen=True)
class Sweep:
    root: Path
    base: ExperimentConfig
    cells: tuple[Cell, ...]
    diverged: list[str] = field(default_factory=list)

    def run(self, execution: Execution, tell: Callable[[int, int, str], None]) -> None:
        """Run what no process has run or is running, one after another, until stopped."""
        self._claim_folder()
        data: dict[str, Dataset] = {}
        for cell in self.cells:
            choice = cell.config.dataset
            source = json.dumps(choice.table())
            if source not in data:
                data = {source: datasets[choice.name].make(**dict(choice.options))}
            with try_lock(cell.path.with_name(f".{cell.path.name}.lock")) as lock:
                if not lock or _is_finished(cell):
                    continue
                try:
                    result = run_experiment(
                        cell.config, cell.path, resume=True, execution=execution, dataset=data[source]
                    )
                except DivergedError as error:
                    self.diverged.append(f"{_title(cell)}: {error}")
                    continue
            if result.status == "interrupted":
                return
            tell(sum(map(_is_finished, self.cells)), len(self.cells), _title(cell))

    def _claim_folder(self) -> None:
        marker = self.root / "sweep.json"
        if marker.is_file():
            before, now = flatten(read_json(marker)["config"]), flatten(self.base.table())
            differing = [key for key in {**before, **now} if key != "imports" and before.get(key) != now.get(key)]
            if differing:
                key = differing[0]
                raise RunError(
                    f"{self.root} is a sweep of a config with {key} = {before.get(key)}, not {now.get(key)}; "
                    "give another --out"
                )
            return
        if RunFolder(self.root).is_taken:
            raise RunError(f"{self.root} exists and is not a sweep; give another --out")
        self.root.mkdir(parents=True, exist_ok=True)
        write_json(marker, {"config": self.base.table()})

    @property
    def missing(self) -> int:
        return sum(not _is_finished(cell) for cell in self.cells)

    def rows(self) -> list[Row]:
        """Of the finished runs, in the order of variations."""
        found: dict[tuple[str, str], list[RunResult]] = {}
        for cell in filter(_is_finished, self.cells):
            result = RunResult.open(cell.path)
            for name, arm in zip(cell.config.arms(), (result, *result.compared), strict=True):
                found.setdefault((cell.variation, name), []).append(arm)
        order = list(dict.fromkeys(cell.variation for cell in self.cells))
        pairs = sorted(found, key=lambda pair: order.index(pair[0]))
        return [row_of(variation, algorithm, found[variation, algorithm]) for variation, algorithm in pairs]


def plan_sweep(
    out: Path | None,
    config: Path | None,
    overrides: Sequence[str],
    vary: Sequence[str],
    seeds: Sequence[int] | None,
    imports: Sequence[str] = (),
) -> Sweep:
    """Every combination of the varied values with every seed; each config is checked before anything is run."""
    base = load_config(config, overrides, imports)
    root = out or Path("runs") / f"{base.name}-sweep"  # the same each time, so that the same command resumes it
    cells = []
    for settings in itertools.product(*map(split_values, vary)):
        one = load_config(config, [*overrides, *settings], imports)
        variation = ", ".join(setting.replace('"', "") for setting in settings)
        for seed in seeds if seeds is not None else (one.seed,):
            own = one.model_copy(update={"seed": seed})
            cells.append(Cell(variation, own, root / _folder_name(variation) / f"seed-{seed}"))
    if len({cell.path for cell in cells}) < len(cells):
        raise ConfigError("--vary gives the same value twice")
    cells.sort(key=lambda cell: cell.config.seed if seeds is not None else 0)  # a first table of all, soon
    return Sweep(root, base, tuple(cells))


def split_values(vary: str) -> list[str]:
    """`algorithm.lr=0.1,0.3` as settings `algorithm.lr=0.1` and `algorithm.lr=0.3`; lists keep their commas."""
    key, equals, text = vary.partition("=")
    if not equals or not key.strip() or not text.strip():
        raise ConfigError(f"--vary {vary!r}: must be key=value,value,..., such as algorithm.lr=0.1,0.3,1")
    if key.strip() == "seed":
        raise ConfigError("--vary seed=...: give --seeds, over which means are taken")
    try:
        values = tomllib.loads(f"values = [{text}]")["values"]
    except (ValueError, RecursionError):
        values = [word.strip() for word in text.split(",")]  # bare words are strings
    return [f"{key.strip()}={json.dumps(value)}" for value in values]


def _is_finished(cell: Cell) -> bool:
    arms = cell.config.arms()
    folders = [cell.path / name for name in arms] if len(arms) > 1 else [cell.path]
    return all(is_over(RunFolder(path), arm) for path, arm in zip(folders, arms.values(), strict=True))


def _title(cell: Cell) -> str:
    return ", ".join(filter(None, (cell.variation, f"seed {cell.config.seed}")))


def _folder_name(variation: str) -> str:
    """Readable, and made unique by a few digits of a hash."""
    if not variation:
        return "as-it-is"
    plain = re.sub(r"[^A-Za-z0-9._=-]+", "_", variation)[:80]
    return f"{plain}-{hashlib.sha256(variation.encode()).hexdigest()[:6]}"
