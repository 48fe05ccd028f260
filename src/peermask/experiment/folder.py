"""A run folder: what is in it and how it is written.

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

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peermask.errors import RunError

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


def is_half_written(path: Path) -> bool:
    """What `replacing` writes to, and what safetensors does by itself, before it takes its place."""
    return path.name.startswith(".") and (path.suffix == ".part" or path.name.startswith(".tmp"))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a full or read-only disk into one line; what is there already stays as it is."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"cannot write {path}: {reason}; nothing written before is lost") from error


def write_atomically(path: Path, data: bytes) -> None:
    """All of it or nothing: a reader never sees half a file, not even after a power cut."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what then takes the file's place, all of it or nothing."""
    with writing(path):
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} does not exist") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}; mend that, then try again") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}); restore the file") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} is not a JSON object; restore the file")
    return content
