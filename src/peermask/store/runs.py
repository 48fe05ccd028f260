"""Runs on a disk, found by their manifests: what each is, how their configs differ, and deletion. Without torch."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peermask.errors import RunError
from peermask.files import hold_lock, is_half_written, read_json, writing
from peermask.store.folder import LOCK, RunFolder, is_lock
from peermask.store.result import name_of, read_toml
from peermask.store.sweeps import SWEEP, SweepFolder
from peermask.task import flatten

COMPARISON, MANIFEST = "compare.toml", "manifest.json"
WRITTEN = (
    *("result.json", "diverged.json", "metrics.csv", "traffic.csv", "confusion.csv", "trace.csv", "report.html"),
    *("checkpoints", "masks", LOCK, "sweep.csv", SWEEP, COMPARISON, "config.toml", MANIFEST),
)  # by a run or sweep; the manifest goes last, so that a deletion that was interrupted can be repeated


@dataclass(frozen=True)
class FoundRun:
    """A run folder, read without trust."""

    path: Path
    config: dict[str, Any]  # as in its file
    status: str  # finished, stopped, diverged, ...; "unfinished" without a result; "damaged"
    created: str = ""
    round: int | None = None
    figure: str = ""  # the name of the one that counts
    value: float | None = None
    sent_bytes: float | None = None

    @property
    def algorithm(self) -> str:
        return name_of(self.config.get("algorithm", ""))


def find_runs(root: Path) -> list[FoundRun]:
    """Find all runs in a folder and those inside it, the oldest first."""
    if not root.is_dir():
        raise RunError(f"there is no folder {root}; name the one that has your runs")
    folders = [path.parent for path in root.rglob(MANIFEST)]
    return sorted(
        (read_run(path) for path in folders if RunFolder(path).is_run), key=lambda run: (run.created, run.path)
    )


def read_run(path: Path) -> FoundRun:
    """Read what a run folder says of its run."""
    folder = RunFolder(path)
    folder.check_run()
    if not folder.manifest.is_file():
        raise RunError(f"{path} is not a run folder: it has no {MANIFEST}")
    config: dict[str, Any] = {}
    try:
        config = read_toml(folder.config)
        manifest = read_json(folder.manifest)
        result = read_json(folder.result) if folder.result.is_file() else {}
    except RunError:
        return FoundRun(path, config, "damaged")
    figures = manifest.get("figures")
    figure = str(figures[0]) if isinstance(figures, list) and figures else "accuracy"
    return FoundRun(
        path,
        config,
        str(result.get("status", "diverged" if folder.diverged.is_file() else "unfinished")),
        str(manifest.get("created", "")),
        _number(result.get("round")),
        figure,
        _number(result.get(f"test_{figure}")),
        _number(result.get("sent_bytes")),
    )


def _number(value: object) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def differences(runs: Sequence[FoundRun]) -> dict[str, list[str]]:
    """The config keys that are not the same in all runs, with the value in each."""
    flat = [flatten(run.config) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    rows = {key: [one.get(key, "") for one in flat] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def runs_in(path: Path) -> list[Path]:
    """The folders to delete with a run, comparison or sweep: those of its runs first, then its own."""
    if (path / SWEEP).is_file():
        runs = [path / run.path for run in SweepFolder.open(path).runs]
        above = sorted({folder for run in runs for folder in run.parents if path in folder.parents}, reverse=True)
        return [folder for folder in (*runs, *above, path) if folder.is_dir()]
    if (path / COMPARISON).is_file():
        return [*(inner.parent for inner in sorted(path.glob(f"*/{MANIFEST}"))), path]
    read_run(path)  # or it is refused
    return [path]


def size_of(path: Path) -> int:
    """Bytes of all that a run wrote in a folder."""
    inside = [file for name in WRITTEN for file in ((path / name), *(path / name).rglob("*"))]
    return sum(file.lstat().st_size for file in inside if file.is_file())


def delete_run(path: Path) -> list[Path]:
    """Delete what a run wrote in its folder, and the folder if nothing else is there; return what else is there."""
    busy = RunError(f"{path} is being run by another process; wait for it, or stop it first")
    if path.is_symlink():
        raise RunError(f"{path} is a link; delete the folder it leads to: {path.resolve()}")
    with writing(path):
        with hold_lock(path / LOCK, busy):
            half = [file for file in path.iterdir() if is_half_written(file) or (is_lock(file) and file.name != LOCK)]
            for file in (*half, *(path / name for name in WRITTEN if name != LOCK)):
                if file.is_dir() and not file.is_symlink():
                    shutil.rmtree(file)
                else:
                    file.unlink(missing_ok=True)
        (path / LOCK).unlink(missing_ok=True)
        left = sorted(path.iterdir())
        if not left:
            path.rmdir()
    return left
