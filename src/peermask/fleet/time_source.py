"""Where an agent takes the time from: the system, or a clock that a test moves.

Waits go through it as well. A test whose clock stands still would otherwise wait for ever.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class TimeSource(Protocol):
    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        ...

    def now(self) -> datetime:
        """The date and time in UTC, as the device's clock has it."""
        ...

    def sleep(self, seconds: float) -> None: ...

    def condition(self) -> threading.Condition:
        """A condition whose time limits are those of this source."""
        ...

    def event(self) -> threading.Event:
        """An event whose time limits are those of this source."""
        ...


class SystemTime:
    """The time of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def condition(self) -> threading.Condition:
        return threading.Condition()

    def event(self) -> threading.Event:
        return threading.Event()


SYSTEM_TIME = SystemTime()
