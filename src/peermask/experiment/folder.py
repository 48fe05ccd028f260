"""A run folder: what is in it.

    config.toml       the resolved config, every default written out
    manifest.json     versions, code revision, hashes of data and graph, seeds, device
    metrics.csv       one row per agent and evaluation
    traffic.csv       one row per agent and round: what its message cost on a link, or on the mean of them
    confusion.csv     of a classification, after its last evaluation: how often an agent took a label for another
    trace.csv         of asynchronous fleets, and runs that play their traces: which messages were used in which round
    checkpoints/      round-NNNNNN.safetensors, the last few
    masks/            round-NNNNNN.npz, every agent's mask at checkpoints
    result.json       written once at the end: final hash and summary
    .lock             held by the process that runs it; gone with a finished run

What is read back is checked: checkpoints, manifest and result carry a digest of themselves, checkpoints and result one
of the tables as they were then, and masks the checksum of their archive.

A comparison is a folder of such folders, one per algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from peermask.errors import RunError
from peermask.files import is_half_written, writing

LOCK = ".lock"


class Inside:
    """A path inside a run folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, _: type[RunFolder]) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    path: Path

    config = Inside("config.toml")
    manifest = Inside("manifest.json")
    metrics = Inside("metrics.csv")
    traffic = Inside("traffic.csv")
    confusion = Inside("confusion.csv")
    trace = Inside("trace.csv")
    result = Inside("result.json")
    checkpoints = Inside("checkpoints")
    masks = Inside("masks")
    lock = Inside(LOCK)  # held by the process that runs it; the file itself says nothing

    @property
    def is_run(self) -> bool:
        return self.config.is_file()

    @property
    def is_taken(self) -> bool:
        """Whether a new run here could overwrite something.

        What a run killed before its first line of config left behind, a manifest and empty folders, is nothing.
        """
        if not self.path.is_dir():
            return self.path.exists()
        files = [path for path in self.path.rglob("*") if not path.is_dir() and not is_half_written(path)]
        return any(path != self.manifest and path.name != LOCK for path in files)

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


def round_of(path: Path) -> int:
    """Of a file named round-NNNNNN."""
    number = path.stem.removeprefix("round-")
    return int(number) if number.isdecimal() else 0
