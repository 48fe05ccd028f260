"""Counts of messages and bytes, by neighbour and by round."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Totals:
    """Neighbour -> how many, since the agent's process started."""

    messages: dict[int, int]
    bytes: dict[int, int]


class Tally:
    """Thread-safe: the transport's thread sends, the agent's receives, and others read."""

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


@dataclass(frozen=True)
class Sent:
    """Frames of one round that were sent."""

    frames: int = 0
    bytes: int = 0
    keyframes: int = 0  # of them

    def one_more(self, size: int, keyframe: bool) -> Sent:
        return Sent(self.frames + 1, self.bytes + size, self.keyframes + keyframe)

    @property
    def kind(self) -> str:
        """As in traffic.csv: neighbours may have received different kinds."""
        if not self.frames:
            return ""
        return "delta" if not self.keyframes else "keyframe" if self.keyframes == self.frames else "both"
