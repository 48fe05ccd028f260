"""Files that are whole or not there at all, one process at a time, and a full disk in one line."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from peermask.errors import FullDiskError, PeermaskError, RunError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a full or read-only disk into one line; what is there already stays as it is."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        kind = FullDiskError if error.errno in (errno.ENOSPC, errno.EDQUOT) else RunError
        raise kind(f"cannot write {path}: {reason}; nothing written before is lost") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what then takes the file's place; after any error the file is what it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):  # it has its new name when all went well
            temporary.unlink()


def write_atomically(path: Path, data: bytes) -> None:
    """All of it or nothing: a reader never sees half a file, not even after a power cut."""
    with writing(path), replacing(path) as temporary:
        temporary.write_bytes(data)


def is_half_written(path: Path) -> bool:
    """What `replacing` writes to, and what safetensors does by itself, before it takes its place."""
    return path.name.startswith(".") and (path.suffix == ".part" or path.name.startswith(".tmp"))


def write_json(path: Path, content: Mapping[str, Any], indent: int | None = 2) -> None:
    """A JSON object, with a digest of itself."""
    write_atomically(path, (json.dumps({**content, "digest": _digest(content)}, indent=indent) + "\n").encode())


def read_json(path: Path, remedy: str = "restore the file") -> dict[str, Any]:
    """A JSON object as it was written; one without a digest is taken as it is."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} does not exist") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}; mend that, then try again") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}); {remedy}") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} is not a JSON object; {remedy}")
    if content.pop("digest", None) not in (None, _digest(content)):
        raise RunError(f"{path} is damaged (its digest is of other content); {remedy}")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether this process has the lock file to itself while inside; a claim dies with its process."""
    lock = FileLock(path, blocking=False)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(Timeout):  # which is an OSError, like a full disk
            lock.acquire()
    try:
        yield lock.is_locked
    finally:
        lock.release()


@contextmanager
def held(path: Path, busy: PeermaskError) -> Iterator[None]:
    """Have the lock file to oneself, or raise what says that another process has it."""
    with claimed(path) as ours:
        if not ours:
            raise busy
        yield
