"""Messages and bytes that went each way, by neighbour."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Totals:
    """Neighbour -> how many, in this life of the agent."""

    messages: dict[int, int]
    bytes: dict[int, int]


class Tally:
    """Thread-safe: the transport's thread sends, the agent's receives, and others look."""

    def __init__(self) -> None:
        self._messages: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        self._lock = threading.Lock()

    def add(self, neighbour: int, size: int) -> None:
        with self._lock:
            self._messages[neighbour] += 1
            self._bytes[neighbour] += size

    def totals(self) -> Totals:
        with self._lock:
            return Totals(dict(sorted(self._messages.items())), dict(sorted(self._bytes.items())))
