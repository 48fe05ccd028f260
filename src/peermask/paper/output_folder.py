"""The output folder of `reproduce`: its contents, to which runs only add.

reproduce.json   the scale, the data, the tuning seed and the plug-ins everything in it was made with
choices.json     learning rates and first weights: what was tried, what each reached on held-out data, what was chosen
outcomes.jsonl   the outcome of every run, a line each; a run with an outcome is never run again
outcomes/        likewise of runs that ended since then, one small file each: several processes can share a folder
runs/            the run folders themselves, without checkpoints once finished; may be deleted
configs/         the exact config of every cell
NAME.md .tex .csv .png .svg, README.md
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from peermask.data.dataset import Dataset
from peermask.errors import RunError
from peermask.files import read_json, try_lock, write_atomically, write_json, writing
from peermask.paper.cells import Job
from peermask.paper.outcome import Outcome
from peermask.paper.preset import ScaleName
from peermask.plugins import Plugin, changed, same
from peermask.store.folder import RunFolder


def read_table(path: Path) -> Mapping[str, dict[str, Any]]:
    """key -> outcome; empty where there is no table. Read again only after it changed."""
    try:
        table = path.stat()
    except FileNotFoundError:
        return {}
    return _read(path, table.st_mtime_ns, table.st_size)


@lru_cache(maxsize=2)
def _read(path: Path, changed: int, size: int) -> Mapping[str, dict[str, Any]]:  # noqa: ARG001
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}; fix this and retry") from None
    return dict(_line(line, f"{path}, line {number}") for number, line in enumerate(lines, 1))


def _line(line: str, where: str) -> tuple[str, dict[str, Any]]:
    try:
        outcome = json.loads(line)
        return str(outcome.pop("key")), outcome
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise RunError(f"{where}: damaged ({error}); delete the line to run it again") from None


def fold(files: Path, path: Path) -> None:
    """Move the finished outcomes in a folder into the table; left to another process that is at it."""
    lock = files / ".fold.lock"
    with try_lock(lock) as ours:
        finished = sorted(files.glob("*.json"))
        if ours and finished:
            table = dict(read_table(path))
            for file in finished:
                table[file.stem] = read_json(file, "delete it to run it again")
            lines = [json.dumps({"key": key, **table[key]}) + "\n" for key in sorted(table)]
            write_atomically(path, "".join(lines).encode())
            with writing(files):  # a reader that no longer finds a file sees that the table has changed
                for file in finished:
                    file.unlink()
    with suppress(OSError):
        lock.unlink()


@dataclass(frozen=True)
class OutputFolder:
    path: Path

    def open(
        self, scale: ScaleName, dataset: Dataset | None, tuning_seed: int = 0, plugins: Sequence[Plugin] = ()
    ) -> None:
        """Make the folder, or check that it holds results of this scale, data and plug-ins; new ones are added."""
        about: dict[str, Any] = {"scale": scale}
        if dataset is not None:
            about["dataset"] = {"name": dataset.name, "sha256": dataset.fingerprint}
        if not self._is_new():
            marker = read_json(self._marker)
            self._check(marker, about)
            if new := [plugin for plugin in plugins if not any(same(plugin, recorded) for recorded in self.plugins())]:
                recorded = [*marker.get("imports", []), *(plugin.table() for plugin in new)]
                marker = {**marker, "imports": recorded}
            write_json(self._marker, {**about, **marker})
        if plugins:
            about["imports"] = [plugin.table() for plugin in plugins]
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if self._is_new():  # the marker comes first: another process that starts now must find it, or nothing
                write_json(self._marker, {**about, "tuning_seed": tuning_seed})
            for name in ("outcomes", "runs", "configs"):
                (self.path / name).mkdir(exist_ok=True)

    def look(self, scale: ScaleName) -> None:
        """Check that the folder holds results of this scale, which can be shown without the data."""
        if not self._marker.is_file():
            raise RunError(f"{self.path} holds no results of `peermask reproduce`")
        marker = read_json(self._marker)
        self._check(marker, {"scale": scale})

    def plugins(self) -> list[Plugin]:
        """Plug-ins of the results here; empty without results."""
        if not self._marker.is_file():
            return []
        try:
            return [Plugin.model_validate(each) for each in read_json(self._marker).get("imports", [])]
        except (ValidationError, TypeError):
            raise RunError(f"{self._marker} is damaged (imports); restore the file") from None

    def check_plugins(self, given: Sequence[Plugin]) -> None:
        """Check that no plug-in has changed: otherwise results of two versions would be mixed."""
        for line in changed(self.plugins(), given):
            raise RunError(f"{self.path}: {line}; restore it, or give another --out")

    @property
    def tuning_seed(self) -> int:
        """The seed that methods are tuned with: one for the folder, for any seeds requested later."""
        return int(read_json(self._marker).get("tuning_seed", 0))

    @property
    def _marker(self) -> Path:
        return self.path / "reproduce.json"

    def _is_new(self) -> bool:
        """Whether there is nothing yet but, perhaps, another process's marker on its way; anything else is not ours."""
        names = [each.name for each in self.path.iterdir()] if self.path.is_dir() else []
        if self._marker.is_file():
            return False
        if self.path.is_file() or any(not name.startswith(f".{self._marker.name}.") for name in names):
            raise RunError(f"{self.path} exists and was not made by `peermask reproduce`; give another --out")
        return True

    def _check(self, recorded: dict[str, Any], requested: dict[str, Any]) -> None:
        if recorded.get("scale") != requested["scale"]:
            raise RunError(
                f"{self.path} holds results of scale {recorded.get('scale')!r}, not {requested['scale']!r}; "
                "give another --out, or the original scale"
            )
        before, now = recorded.get("dataset"), requested.get("dataset")
        if before and now and before != now:
            raise RunError(
                f"{self.path} was run on {before['name']} data with hash {before['sha256'][:12]}, "
                f"here it is {now['name']} {now['sha256'][:12]}; give another --out"
            )

    @property
    def choices(self) -> Path:
        return self.path / "choices.json"

    def run(self, job: Job) -> RunFolder:
        return RunFolder(self.path / "runs" / job.key)

    def outcome(self, job: Job) -> Outcome | None:
        """The outcome of a run; None while it has not finished."""
        path, remedy = self._outcome_path(job), "delete it to run it again"
        if path.is_file():
            content: dict[str, Any] | None = read_json(path, remedy)
        else:
            path, content = self._table, read_table(self._table).get(job.key)
        try:
            return None if content is None else Outcome.model_validate(content)
        except ValidationError as error:
            raise RunError(f"{path}, {job.key}: damaged ({str(error).splitlines()[0]}); {remedy}") from error

    def keep(self, job: Job, outcome: Outcome) -> None:
        write_json(self._outcome_path(job), json.loads(outcome.model_dump_json(exclude_none=True)), indent=None)

    def fold(self) -> None:
        """Move the outcomes of runs that have ended into the table."""
        fold(self.path / "outcomes", self._table)

    @property
    def _table(self) -> Path:
        return self.path / "outcomes.jsonl"

    def _outcome_path(self, job: Job) -> Path:
        return self.path / "outcomes" / f"{job.key}.json"


def drop_checkpoints(folder: RunFolder) -> None:
    """Delete the checkpoints of a finished run: the states of hundreds would fill a disk."""
    if folder.checkpoints.is_dir():
        with writing(folder.checkpoints):
            shutil.rmtree(folder.checkpoints)
