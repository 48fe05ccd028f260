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

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from peermask.errors import RunError

LOCK = ".lock"
KEYS = "round,agent"  # the first columns of every table
WHOLE = frozenset({"round", "agent", "links", "neighbour"})  # columns of counts and numbers of things
WORDS = frozenset({"kind", "why", "used"})  # columns that may hold a word, or nothing; all others hold numbers


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
        files = [path for path in self.path.rglob("*") if not path.is_dir()]
        return any(path != self.manifest and path.name != LOCK and path.suffix != ".part" for path in files)

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
    with writing(path):
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
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


def append_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Add rows to a table, with its header if it is new; on the disk before a checkpoint says that they are there."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    if not path.exists() or not path.stat().st_size:
        table.writerow(columns)
    table.writerows(rows)
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write(text.getvalue())
        file.flush()
        os.fsync(file.fileno())


def forget_after(path: Path, round: int) -> None:
    """Drop rows of later rounds, and a last row cut off by a crash: a resumed run writes them again."""
    text = _table_text(path)
    if text is None:
        return
    lines = text.split("\n")[:-1]  # what follows the last line end is cut off
    kept = lines[:1]
    for number, line in enumerate(lines[1:], 2):
        key = line.split(",", 1)[0]
        if not _is_whole(key):
            raise damaged(path, number, f"round {key[:20]!r} is no number")
        if int(key) <= round:
            kept.append(line)
    write_atomically(path, "".join(f"{line}\n" for line in kept).encode())


class Row(dict[str, str]):
    """A row of a table; asking for a column that the table lacks is the table's fault, not a bug."""

    __slots__ = ("path",)

    def __init__(self, path: Path, values: Iterable[tuple[str, str]]) -> None:
        super().__init__(values)
        self.path = path

    def __missing__(self, column: str) -> str:
        raise damaged(self.path, 1, f"no column {column!r}")


def read_rows(path: Path) -> list[dict[str, str]]:
    """All whole rows, with numbers where numbers belong: whoever reads them may convert without a look.

    One that is just being written, or was cut off by a crash, is not there yet.
    """
    text = _table_text(path) or ""
    table = csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))
    rows: list[dict[str, str]] = []
    try:
        header = next(table, None)
        if header is None:
            return []
        if len(set(header)) < len(header):
            raise damaged(path, 1, "a column is there twice")
        for values in table:
            if len(values) != len(header):
                raise damaged(path, table.line_num, f"{len(values)} values for {len(header)} columns")
            for column, value in zip(header, values, strict=True):
                if not _belongs(value, column):
                    raise damaged(path, table.line_num, f"{column} {value[:20]!r} is no number")
            rows.append(Row(path, zip(header, values, strict=True)))
    except csv.Error as error:
        raise damaged(path, table.line_num, str(error)) from None
    return rows


def _table_text(path: Path) -> str | None:
    """None where there is no such file; a header just being written, or cut off, is no damage."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise damaged(path, line, f"byte 0x{error.object[error.start]:02x} is no text") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}; mend that, then try again") from None
    if not (re.match(rf"{KEYS}[,\n]", text) or f"{KEYS},".startswith(text)):
        raise damaged(path, 1, f"no header that begins with {KEYS!r}")
    return text


def damaged(path: Path, line: int, what: str) -> RunError:
    return RunError(f"{path} is damaged (line {line}: {what}); restore the file, or start a new run")


def _belongs(value: str, column: str) -> bool:
    if column in WORDS:
        return True
    if column in WHOLE:
        return _is_whole(value)
    try:
        return isfinite(float(value)) or not column.endswith(("_bits", "_bytes"))  # accuracies may be unknown: nan
    except ValueError:
        return False


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
