"""The other ranks of `peermask run --processes N`: processes that this one starts, and that end with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from peermask.ranks.place import Place

LEAVE_WITHIN = 10.0  # seconds that ranks have to end once the first has


class Children:
    def __init__(self, place: Place, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", "peermask", *arguments]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(1, place.size):
            self.processes[rank] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **place.environment(rank)},
                start_new_session=True,  # Ctrl-C is for the first rank, which stops the others
            )

    def fate(self, rank: int) -> str | None:
        """What became of a rank, as the rest of a sentence that begins with it; None while it lives."""
        process = self.processes.get(rank)
        code = None if process is None else process.poll()
        if code is None:
            return None
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def end(self, within: float) -> None:
        until = time.monotonic() + within
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@contextmanager
def children(place: Place, arguments: Sequence[str]) -> Iterator[Children]:
    """None of them outlives this block, however it is left."""
    started = Children(place, arguments)
    try:
        yield started
    except KeyboardInterrupt:
        started.end(0.0)
        raise
    finally:
        started.end(LEAVE_WITHIN)
