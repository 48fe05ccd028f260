"""Atomic writes, JSON files, digests and locks; a full disk is a one-line error."""

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


def as_path(value: Path | str, name: str) -> Path:
    """A path that was given in Python."""
    if not isinstance(value, str | os.PathLike):
        raise PeermaskError(f"{name} has type {type(value).__name__}; give a path")
    return Path(value)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError, such as a full or read-only disk, into a one-line RunError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        kind = FullDiskError if error.errno in (errno.ENOSPC, errno.EDQUOT) else RunError
        raise kind(f"cannot write {path}: {reason}; nothing written before is lost") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which then replaces the file; after an error the file is unchanged."""
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
    """Write a file atomically: a reader never sees half of it, not even after a power cut."""
    with writing(path), replacing(path) as temporary:
        temporary.write_bytes(data)


def is_half_written(path: Path) -> bool:
    """Whether this is a temporary file of `replacing`, or of safetensors, left by an interrupted write."""
    return path.name.startswith(".") and (path.suffix == ".part" or path.name.startswith(".tmp"))


def write_json(path: Path, content: Mapping[str, Any], indent: int | None = 2) -> None:
    """A JSON object, with a digest of itself."""
    write_atomically(path, (json.dumps({**content, "digest": _digest(content)}, indent=indent) + "\n").encode())


def read_json(path: Path, remedy: str = "restore the file") -> dict[str, Any]:
    """A JSON object, verified by its digest if it has one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} does not exist") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}; fix this and retry") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}); {remedy}") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} is not a JSON object; {remedy}")
    if content.pop("digest", None) not in (None, _digest(content)):
        raise RunError(f"{path} is damaged (its digest does not match); {remedy}")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


@contextmanager
def try_lock(path: Path, limit_s: float = 0.0) -> Iterator[bool]:
    """Try to take a lock file for a while, and yield whether it was free; it is released when the process ends."""
    lock = FileLock(path, timeout=limit_s)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(Timeout):  # which is an OSError, like a full disk
            lock.acquire()
    try:
        yield lock.is_locked
    finally:
        lock.release()


@contextmanager
def hold_lock(path: Path, busy: PeermaskError) -> Iterator[None]:
    """Hold a lock file, or raise `busy` if another process holds it."""
    with try_lock(path) as ours:
        if not ours:
            raise busy
        yield
