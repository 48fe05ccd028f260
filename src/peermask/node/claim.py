"""A folder belongs to the process that runs it: a second would forget its rows and replace its logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peermask.errors import NodeError
from peermask.experiment import lock


@contextmanager
def claimed(path: Path, otherwise: str) -> Iterator[None]:
    """Hold a lock file; a NodeError that says `otherwise` while another process does."""
    with lock.claimed(path) as ours:
        if not ours:
            raise NodeError(otherwise)
        yield
