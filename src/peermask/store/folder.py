"""A run folder: its files, the lock that lets one process at a time work on it, and readers that check all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from math import isclose
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError

from peermask.errors import RunError
from peermask.files import hold_lock, is_half_written, read_json, write_json, writing
from peermask.store.table import RESULT_TABLES, Extent, Table, check_extents, extents, read_table
from peermask.task import Readout, Task

LOCK = ".lock"


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.manifest, self.result = path / "config.toml", path / "manifest.json", path / "result.json"
        self.metrics, self.traffic = path / "metrics.csv", path / "traffic.csv"
        self.confusion, self.trace = path / "confusion.csv", path / "trace.csv"
        self.diverged = path / "diverged.json"  # why a run ended without a result
        self.checkpoints, self.masks = path / "checkpoints", path / "masks"
        self.lock = path / LOCK  # of the process that runs it; the file itself says nothing

    @property
    def is_run(self) -> bool:
        return self.config.is_file()

    @property
    def is_taken(self) -> bool:
        """Whether a new run here could overwrite something.

        What a process killed at its start left behind, locks, a manifest and empty folders, is nothing.
        """
        if not self.path.is_dir():
            return self.path.exists()
        files = [path for path in self.path.rglob("*") if not path.is_dir() and not is_half_written(path)]
        return any(path != self.manifest and not is_lock(path) for path in files)

    def check_run(self) -> None:
        """Check that there is a run here."""
        if not self.path.is_dir():
            raise RunError(f"there is no folder {self.path}; check the path (`peermask runs list` shows your runs)")
        if not self.is_run:
            runs = sorted(path.parent.name for path in self.path.glob("*/config.toml"))
            hint = f"; it has runs: {', '.join(runs[:3])}{', ...' * (len(runs) > 3)}" if runs else ""
            raise RunError(f"{self.path} is not a run folder: it has no config.toml{hint}")

    def check_free(self) -> None:
        if self.is_taken:
            if not self.is_run and not (self.path / "compare.toml").is_file():
                raise RunError(f"{self.path} exists and is not a run folder; give another --out")
            raise RunError(
                f"run folder {self.path} exists; resume it with `peermask run --resume {self.path}` "
                "or give another --out"
            )

    def create(self) -> None:
        self.check_free()
        with writing(self.path):
            self.checkpoints.mkdir(parents=True, exist_ok=True)


def is_lock(path: Path) -> bool:
    """Whether this is the lock of a run, or one of a sweep: `.sweep.lock`, `.seed-0.lock`."""
    return path.name.startswith(".") and path.name.endswith(LOCK)


def is_of_fleet(folder: Path) -> bool:
    """Whether devices made the run in a folder, and not the simulator: then only they can resume it."""
    return (folder / "absences.csv").is_file() or (folder / "agents").is_dir()


def round_of(path: Path) -> int:
    """The round of a file named round-NNNNNN."""
    number = path.stem.removeprefix("round-")
    return int(number) if number.isdecimal() else 0


@contextmanager
def lock_folder(folder: RunFolder) -> Iterator[None]:
    """Keep other processes off a run folder."""
    busy = RunError(f"{folder.path} is being run by another process; wait for it, or stop it first")
    with hold_lock(folder.lock, busy):
        yield
        # Once the file is deleted, another process may lock a new one beside this. A finished run is only read by both.
        if folder.result.is_file():
            with suppress(OSError):
                folder.lock.unlink()


def clear_leftovers(folder: RunFolder, *further: Path) -> None:
    """Remove what a killed process had half written; only with the lock held, since only runs write these files."""
    own = (folder.config, folder.manifest, folder.metrics, folder.traffic, folder.result, *further)
    rests = [rest for file in own for rest in folder.path.glob(f".{file.name}.*.part")]
    for inner in (folder.checkpoints, folder.masks):
        rests += filter(is_half_written, inner.glob(".*"))
    for rest in rests:
        with suppress(OSError):  # it does no harm
            rest.unlink()


# Readers that do not trust what a run wrote: manifest.json, result.json, and tables that a resumed run adds to.

Model = TypeVar("Model", bound=BaseModel)


class _Agent(BaseModel):
    agent: NonNegativeInt
    labels: list[int]
    retention: FiniteFloat
    links: NonNegativeInt


class _Dataset(BaseModel):
    name: str
    sha256: str


class _Graph(BaseModel):
    links: list[tuple[NonNegativeInt, NonNegativeInt]]


class _Layer(BaseModel):
    name: str
    kind: str
    shape: list[PositiveInt] = Field(min_length=1)


class _Manifest(BaseModel):
    """Parts of a manifest that tables and reports rely on."""

    config_hash: str
    config_sha256: list[str] = Field(min_length=1)  # of config.toml, and of what it was with fewer rounds
    dataset: _Dataset
    graph: _Graph
    agents: list[_Agent] = Field(min_length=1)
    classes: list[str]
    readout: Readout
    task: Task
    figures: list[str] = Field(min_length=1)  # the one that counts first
    weights: PositiveInt
    parameters: PositiveInt
    layers: list[_Layer] = Field(min_length=1)
    earlier_hashes: list[str] = []


class _Result(BaseModel):
    status: str
    round: NonNegativeInt
    hash: str
    seconds: float
    tables: dict[str, Extent]


def read_manifest(path: Path) -> dict[str, Any]:
    content = read_json(path)
    _check(path, _Manifest, content, "restore the file, or start a new run")
    numbers, classes = [agent["agent"] for agent in content["agents"]], len(content["classes"])
    labels = {label for agent in content["agents"] for label in agent["labels"]}
    linked = {agent for link in content["graph"]["links"] for agent in link}
    what = None
    if not labels <= set(range(classes)):
        what = f"agents.labels: not of labels 0 to {classes - 1}"
    elif numbers != list(range(len(numbers))) or not linked <= set(numbers):
        what = f"agents and graph.links: not of agents 0 to {len(numbers) - 1}"
    if what is not None:
        raise RunError(f"{path} is damaged ({what}); restore the file, or start a new run")
    return content


def config_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def check_config(folder: RunFolder, manifest: dict[str, Any]) -> None:
    """Check that config.toml is as the run wrote it: an edited one would describe another run."""
    try:
        text = folder.config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{folder.config} cannot be read: {error}; restore the file") from None
    if config_digest(text) not in manifest["config_sha256"]:
        raise RunError(
            f"{folder.config} was changed since {folder.manifest.name} was written; "
            "restore the file, or start a new run with the changed one"
        )


def write_result(folder: RunFolder, content: dict[str, Any]) -> None:
    """Write the result of a run, with digests of all its tables."""
    write_json(folder.result, {**content, "tables": extents(folder.path, content["round"], RESULT_TABLES)})


def read_result(path: Path) -> dict[str, Any]:
    """Read a run's result and check its tables; empty before the run has come to its end."""
    if not path.is_file():
        return {}
    remedy = f"delete it and go on with `peermask run --resume {path.parent}`"
    content = read_json(path, remedy)
    check_extents(path.parent, _check(path, _Result, content, remedy).tables, path)
    return content


def check_tables(folder: RunFolder, agents: int, rounds: Iterable[int]) -> None:
    """Check that a checkpoint's rows are there, with the rounds evaluated: a resumed run would have a wrong result."""
    metrics, traffic = read_table(folder.metrics), read_table(folder.traffic)
    check_rows(metrics, rounds, agents)
    check_rows(traffic, traffic.rounds.tolist(), agents)
    last = int(metrics.rounds.max(initial=0))
    told = float(np.nansum(metrics["sent_bytes"][-1:]))
    sent = float(np.nansum((traffic["links"] * traffic["coded_bytes"])[traffic.rounds <= last]))
    if not isclose(sent, told, rel_tol=1e-5):  # tables hold seven digits
        raise RunError(
            f"{folder.traffic} lacks rows: {sent:.0f} bytes sent by round {last}, by metrics.csv {told:.0f}; "
            "restore the file, or start a new run"
        )


def check_rows(table: Table, rounds: Iterable[int], agents: int) -> None:
    """Check that each agent has a row in each of these rounds, and that there are no others."""
    place, last = {number: place for place, number in enumerate(table.rounds.tolist())}, table.has_row.shape[1] - 1
    remedy = "restore the file, or start a new run"
    for number in sorted(rounds):
        for agent in range(agents):
            if number not in place or agent > last or not table.has_row[place[number], agent]:
                raise RunError(f"{table.path} lacks agent {agent} in round {number}; {remedy}")
    if last >= agents:
        raise RunError(f"{table.path} has rows of agent {last}, of {agents} agents; {remedy}")


def _check(path: Path, shape: type[Model], content: dict[str, Any], remedy: str) -> Model:
    try:
        return shape.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        older = ", perhaps as version 1.0 wrote it" if first["type"] == "missing" else ""
        raise RunError(f"{path} is damaged ({place}: {first['msg']}{older}); {remedy}") from None
