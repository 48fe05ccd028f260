"""Writes to a slow disk while rounds are computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Does one thing at a time, in order, beside the caller. Use as a context manager, which waits for the last.

    What goes wrong is raised where the caller next waits, which every `do` does first: never more than one thing
    is on its way, and what was written before it is complete.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="background")
        self._last: Future[None] | None = None

    def do(self, work: Callable[[], None]) -> None:
        self.wait()
        self._last = self._pool.submit(work)

    def wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._pool.shutdown()
