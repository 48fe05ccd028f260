"""A run folder: its files, and the lock that lets one process at a time work on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from peermask.errors import RunError
from peermask.files import hold_lock, is_half_written, writing

LOCK = ".lock"


class FolderFile:
    """A path inside a run folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, _: type[RunFolder]) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    path: Path

    config = FolderFile("config.toml")
    manifest = FolderFile("manifest.json")
    metrics = FolderFile("metrics.csv")
    traffic = FolderFile("traffic.csv")
    confusion = FolderFile("confusion.csv")
    trace = FolderFile("trace.csv")
    result = FolderFile("result.json")
    diverged = FolderFile("diverged.json")  # why a run ended without a result
    checkpoints = FolderFile("checkpoints")
    masks = FolderFile("masks")
    lock = FolderFile(LOCK)  # held by the process that runs it; the file itself says nothing

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
            raise RunError(f"{self.path} is not a run folder: it has no config.toml")

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
