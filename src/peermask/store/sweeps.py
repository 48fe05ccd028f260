"""The folder of a sweep, read without torch.

sweep.json                     the config that is varied, and every run
VARIATION/ALGORITHM/seed-N/    an ordinary run
sweep.csv                      a row for each variation and algorithm
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt

from peermask.errors import RunError
from peermask.files import read_json, try_lock, write_atomically, write_json
from peermask.store.folder import RunFolder
from peermask.store.result import StoredRun
from peermask.store.table import nanmean
from peermask.task import flatten

SWEEP = "sweep.json"
LOCK_SECONDS = 30.0  # to wait for another process that writes sweep.json


def touches(key: str, place: int) -> bool:
    """Whether a key changes an algorithm: `algorithm` (place 0), or one of `compare` (1, 2, ...)."""
    table = key.partition(".")[0]
    return {"algorithm": place == 0, "compare": place > 0}.get(table, True)


def _check_setting(setting: str) -> str:
    json.loads(setting.partition("=")[2])
    return setting


Setting = Annotated[str, AfterValidator(_check_setting)]


class SweepRun(BaseModel):
    """One run of a sweep."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: tuple[Setting, ...]  # `algorithm.lr=0.1`: the varied keys that touch its algorithm
    place: NonNegativeInt  # of its algorithm, see `touches`
    algorithm: Annotated[str, Field(pattern=r"^[^/\\]*[^/\\.][^/\\]*$")]  # it names a folder
    seed: NonNegativeInt

    @property
    def variation(self) -> str:
        """`algorithm.lr=0.3, graph.p=0.5`; empty if no key touches it."""
        return ", ".join(setting.replace('"', "") for setting in self.settings)

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.variation, self.algorithm, f"seed {self.seed}")))

    @property
    def path(self) -> Path:
        """The run's folder in that of the sweep: readable, and made unique by a few digits of a hash."""
        plain = re.sub(r"[^A-Za-z0-9._=-]+", "_", self.variation)[:80]
        digits = hashlib.sha256(self.variation.encode()).hexdigest()[:6]
        return Path(f"{plain}-{digits}" if plain else "as-it-is", self.algorithm, f"seed-{self.seed}")


@dataclass(frozen=True)
class SweepRow:
    """The results of a variation with one algorithm, over its seeds."""

    runs: tuple[SweepRun, ...]
    values: dict[str, str]  # of each varied key; empty where it does not touch the algorithm
    validation: tuple[float, ...]  # of each finished run, over honest agents, on held-out data: see store/table.py
    test: tuple[float, ...]
    sent_bytes: float
    diverged: int = 0  # runs
    figure: str = "accuracy"  # the one that counts

    @property
    def variation(self) -> str:
        return self.runs[0].variation

    @property
    def algorithm(self) -> str:
        return self.runs[0].algorithm

    @property
    def seeds(self) -> int:
        return len(self.test)


DATA_KEYS = ("agents", "dataset", "partition", "data.fraction", "data.validation")  # they decide what data an agent has


def best_rows(rows: Sequence[SweepRow]) -> list[SweepRow]:
    """Choose the best variation of each algorithm with several, by held-out data; none where nothing is held out.

    Rows of different data are not compared: each data has a best one of its own.
    """
    alike: dict[tuple[object, ...], list[SweepRow]] = {}
    for row in rows:
        if not isnan(spread(row.validation)[0]):
            run = row.runs[0]
            of_data = [setting for setting in run.settings if setting.startswith(DATA_KEYS)]
            alike.setdefault((run.place, *of_data), []).append(row)
    return [max(own, key=lambda row: spread(row.validation)[0]) for own in alike.values() if len(own) > 1]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of the known values of a sample; NaN where there are too few."""
    known = [value for value in values if not isnan(value)]
    return fmean(known) if known else nan, stdev(known) if len(known) > 1 else nan


@dataclass(frozen=True)
class SweepFolder:
    root: Path
    config: dict[str, Any]  # with no key varied
    runs: tuple[SweepRun, ...]

    @classmethod
    def open(cls, root: Path) -> SweepFolder:
        marker = root / SWEEP
        content = read_json(marker)
        try:
            runs = tuple(SweepRun.model_validate(run) for run in content["runs"])
            return cls(root, dict(content["config"]), runs)
        except (KeyError, TypeError, ValueError, RecursionError):
            raise RunError(f"{marker} is damaged; restore the file, or start the sweep with another --out") from None

    @classmethod
    def add(cls, root: Path, config: Mapping[str, Any], runs: Sequence[SweepRun]) -> SweepFolder:
        """Make the folder of a sweep, or add runs to it."""
        marker = root / SWEEP
        if RunFolder(root).is_taken and not marker.is_file():  # in this order: another process may begin it now
            raise RunError(f"{root} exists and is not a sweep; give another --out")
        with try_lock(root / ".sweep.lock", LOCK_SECONDS) as ours:
            if not ours:
                raise RunError(f"{marker} is being written by another process; try again")
            before = cls.open(root) if marker.is_file() else cls(root, dict(config), ())
            one, other = (flatten({**each, "imports": None}) for each in (before.config, config))
            if differing := [key for key in {**one, **other} if one.get(key) != other.get(key)]:
                key = differing[0]
                raise RunError(
                    f"{root} is a sweep of a config with {key} = {one.get(key)}, not {other.get(key)}; "
                    "give another --out"
                )
            if new := [run for run in runs if run not in before.runs]:
                every = [run.model_dump(mode="json") for run in (*before.runs, *new)]
                write_json(marker, {"config": before.config, "runs": every})
        return cls.open(root)

    @property
    def missing(self) -> int:
        return sum(not self.is_done(run) for run in self.runs)

    def is_done(self, run: SweepRun) -> bool:
        """Whether a run has ended, perhaps because it diverged."""
        folder = RunFolder(self.root / run.path)
        return folder.result.is_file() or folder.diverged.is_file()

    def diverged(self) -> list[str]:
        """A line for each run that diverged."""
        files = {run.title: RunFolder(self.root / run.path).diverged for run in self.runs}
        return [f"{title}: {read_json(file).get('message')}" for title, file in files.items() if file.is_file()]

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The varied keys, in the order in which they came."""
        return tuple(dict.fromkeys(setting.partition("=")[0] for run in self.runs for setting in run.settings))

    @cached_property
    def rows(self) -> list[SweepRow]:
        """Rows of all runs that have ended, by algorithm, in the order of variations."""
        groups: dict[tuple[str, int], list[SweepRun]] = {}
        for run in sorted(self.runs, key=lambda run: run.place):
            groups.setdefault((run.variation, run.place), []).append(run)
        rows = (self._row([run for run in group if self.is_done(run)]) for group in groups.values())
        return [row for row in rows if row is not None]

    def _row(self, runs: Sequence[SweepRun]) -> SweepRow | None:
        if not runs:
            return None
        results = [StoredRun.open(self.root / run.path) for run in runs]
        finished = [result for result in results if result.status != "diverged"]
        main = results[0].main_figure
        return SweepRow(
            tuple(runs),
            self._values(runs[0]),
            tuple(_held_out(result) for result in finished),
            tuple(result.mean(main) for result in finished),
            fmean(result.sent_bytes for result in finished) if finished else nan,
            len(results) - len(finished),
            main,
        )

    def _values(self, run: SweepRun) -> dict[str, str]:
        """The value of each varied key, also where it is that of the config."""
        settings = {key: str(json.loads(text)) for key, _, text in (each.partition("=") for each in run.settings)}
        values = {**flatten(self.config), **settings}
        return {key: values.get(key, "-") if touches(key, run.place) else "" for key in self.keys}

    def write_table(self) -> Path:
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        main = self.rows[0].figure if self.rows else "accuracy"
        measures = (f"validation_{main}", "validation_deviation", f"test_{main}", "test_deviation", "sent_bytes")
        table.writerow(("variation", "algorithm", *self.keys, "seeds", "diverged", *measures))
        for row in self.rows:
            figures = (*spread(row.validation), *spread(row.test), row.sent_bytes)
            numbers = (row.seeds, row.diverged, *(f"{figure:.6g}" for figure in figures))
            table.writerow((row.variation, row.algorithm, *row.values.values(), *numbers))
        write_atomically(self.root / "sweep.csv", text.getvalue().encode())
        return self.root / "sweep.csv"


def _held_out(result: StoredRun) -> float:
    """Average the reported figure on held-out data over honest agents."""
    honest = [not agent.liar for agent in result.agents]
    return nanmean(result.evaluations().reported_mean(f"validation_{result.main_figure}")[honest])
