"""A transport whose session can be reopened, with other neighbours or another certificate, while it is used.

A session's certificates and access control cannot be changed. So it is ended between two questions and another one
opened; who asks meanwhile waits until that has found the neighbours again that it had, or for REGROUP seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, ExitStack

from peermask.node.transport import Transport

REGROUP = 3.0


class Reopening:
    """Implements `Transport`. Thread-safe; use as a context manager, and `open` it inside."""

    def __init__(self) -> None:
        self._current: Transport | None = None
        self._opening = False
        self._asking = 0
        self._exit = ExitStack()
        self._changed = threading.Condition()

    def __enter__(self) -> Reopening:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def close(self) -> frozenset[int]:
        """End the session, between two questions; gives who was there."""
        with self._changed:
            before, self._current = self._current, None
            self._changed.wait_for(lambda: not self._asking)
        there = frozenset() if before is None else before.alive()
        self._exit.close()
        return there

    def open(self, session: AbstractContextManager[Transport], expected: Collection[int]) -> None:
        """In place of what is open; `expected` are those who should be there again if they were before."""
        with self._changed:
            self._opening = True
        try:
            awaited = self.close() & frozenset(expected)
            opened = self._exit.enter_context(session)
            end = time.monotonic() + REGROUP
            while not opened.alive() >= awaited and time.monotonic() < end:
                opened.await_change(0.05)
            with self._changed:
                self._current = opened
        finally:
            with self._changed:
                self._opening = False
                self._changed.notify_all()

    def ask(self, requests: Mapping[int, bytes], patience: float) -> dict[int, bytes]:
        with self._changed:
            current = self._opened()
            if current is None:
                return {}
            self._asking += 1
        try:
            return current.ask(requests, patience)
        finally:
            with self._changed:
                self._asking -= 1
                self._changed.notify_all()

    def alive(self) -> frozenset[int]:
        with self._changed:
            current = self._opened()
        return frozenset() if current is None else current.alive()

    def await_change(self, seconds: float) -> None:
        with self._changed:
            current = self._current
            if current is None:
                self._changed.wait(seconds)
        if current is not None:
            current.await_change(seconds)

    def deaf_to(self) -> frozenset[int]:
        with self._changed:
            current = self._current
        return frozenset() if current is None else current.deaf_to()

    def _opened(self) -> Transport | None:
        """What is open, or will be in a moment."""
        self._changed.wait_for(lambda: not self._opening)
        return self._current
