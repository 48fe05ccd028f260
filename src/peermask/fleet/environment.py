"""What an agent uses of its device: the time, a log, and the network.

All are arguments. Tests have a clock that they move; waits go through it too, or they would last for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from typing import Literal, Protocol

Level = Literal["info", "warning", "error"]


class Line(str):
    """A line of the log: a text for people, with a name of the event and fields, which `--log json` writes as well."""

    event: str
    level: Level
    fields: dict[str, object]

    def __new__(cls, text: str, event: str, level: Level = "info", **fields: object) -> Line:
        line = super().__new__(cls, text)
        line.event, line.level, line.fields = event, level, fields
        return line

    @classmethod
    def of(cls, text: str) -> Line:
        return text if isinstance(text, Line) else cls(text, "note")


class TimeSource:
    """The time of this machine."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        return time.monotonic()

    def now(self) -> datetime:
        """The date and time in UTC, as the device's clock has it."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def condition(self) -> threading.Condition:
        """A condition whose time limits are those of this source."""
        return threading.Condition()

    def event(self) -> threading.Event:
        """An event whose time limits are those of this source."""
        return threading.Event()


SYSTEM_TIME = TimeSource()


# The interface to the network: requests and answers between neighbours, as bytes.

Reply = Callable[[bytes], None]

# asker, request, where to send the answer; it may be sent later, from another thread, or never
Handler = Callable[[int, bytes, Reply], None]


class Transport(Protocol):
    def ask(self, requests: Mapping[int, bytes], patience: float) -> dict[int, bytes]:
        """Send each neighbour its request, and return the answers that arrive within `patience` seconds."""
        ...

    def alive(self) -> frozenset[int]:
        """Neighbours that are connected now, as far as the network knows."""
        ...

    def await_change(self, seconds: float) -> None:
        """Sleep until a neighbour connects or disconnects, at most `seconds`."""
        ...

    def stale_links(self) -> frozenset[int]:
        """Neighbours that are linked, but whose messages do not arrive until the session is reopened."""
        ...


# A transport whose session can be reopened, with other neighbours or another certificate, while it is used.
#
# The certificates and access control of an open session cannot be changed. So it is closed between two requests and
# another one opened; requests wait until that is connected to the same neighbours again, at most REGROUP_SECONDS.

REGROUP_SECONDS = 3.0
CALL_SECONDS = 30.0  # seconds for a request to end, or a session to open; longer than any of them is allowed to take


class ReconnectingTransport:
    """Implements `Transport`. Thread-safe; use as a context manager, and `open` it inside."""

    def __init__(self, time: TimeSource = SYSTEM_TIME) -> None:
        self.time = time
        self._current: Transport | None = None
        self._opening = False
        self._asking = 0
        self._exit = ExitStack()
        self._changed = time.condition()

    def __enter__(self) -> ReconnectingTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def close(self) -> frozenset[int]:
        """Close the session between two requests, and return the neighbours that were alive."""
        with self._changed:
            before, self._current = self._current, None
            self._changed.wait_for(lambda: not self._asking, CALL_SECONDS)
        there = frozenset() if before is None else before.alive()
        self._exit.close()
        return there

    def open(self, session: AbstractContextManager[Transport], expected: Collection[int]) -> None:
        """Replace the open session; wait for those of `expected` that were alive before."""
        with self._changed:
            self._opening = True
        try:
            awaited = self.close() & frozenset(expected)
            opened = self._exit.enter_context(session)
            end = self.time.monotonic() + REGROUP_SECONDS
            while not opened.alive() >= awaited and self.time.monotonic() < end:
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

    def stale_links(self) -> frozenset[int]:
        with self._changed:
            current = self._current
        return frozenset() if current is None else current.stale_links()

    def _opened(self) -> Transport | None:
        """The open session, after waiting for one that is being opened."""
        self._changed.wait_for(lambda: not self._opening, CALL_SECONDS)
        return self._current
