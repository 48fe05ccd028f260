"""What an agent uses of its device: the time, and a log.

Both are arguments. Tests have a clock that they move; waits go through it too, or they would last for ever.
"""

from __future__ import annotations

import threading
import time
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
