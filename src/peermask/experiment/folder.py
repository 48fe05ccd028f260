"""A run folder: what is in it.

    config.toml       the resolved config, every default written out
    manifest.json     versions, code revision, hashes of data and graph, seeds, device
    metrics.csv       one row per agent and evaluation
    traffic.csv       one row per agent and round: what its message cost on a link
    checkpoints/      round-NNNNNN.safetensors, the last few
    masks/            round-NNNNNN.npz, every agent's mask at checkpoints
    result.json       written once at the end: final hash and summary
    .lock             held by the process that runs it; gone with a finished run

A comparison is a folder of such folders, one per algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from peermask.errors import RunError
from peermask.files import is_half_written, writing

LOCK = ".lock"


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def traffic(self) -> Path:
        return self.path / "traffic.csv"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def masks(self) -> Path:
        return self.path / "masks"

    @property
    def lock(self) -> Path:
        """Held by the process that runs it; the file itself says nothing."""
        return self.path / LOCK

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
                f"run folder {self.path} exists; go on with `peermask run --resume {self.path}` or give another --out"
            )

    def create(self) -> None:
        self.check_free()
        with writing(self.path):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
