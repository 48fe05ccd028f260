"""A folder belongs to the process that runs it: a second would forget its rows and replace its logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from peermask.errors import NodeError
from peermask.experiment.folder import writing


@contextmanager
def claimed(lock: Path, otherwise: str) -> Iterator[None]:
    """Hold the lock, which dies with its process; a NodeError that says `otherwise` while another holds it."""
    held = FileLock(lock, blocking=False)
    with writing(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            held.acquire()
        except Timeout:  # which is an OSError, like a full disk
            raise NodeError(otherwise) from None
    try:
        yield
    finally:
        held.release()
