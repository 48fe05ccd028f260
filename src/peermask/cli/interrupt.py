"""Ctrl-C and SIGTERM finish the round and save; a second one stops immediately."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Interrupt:
    def __init__(self) -> None:
        self._signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def requested(self) -> bool:
        return self._signal != 0

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program ended by that signal; another rank may have heard it."""
        return 128 + (self._signal or signal.SIGTERM)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        if self._signal:
            raise KeyboardInterrupt
        self._signal = number
