"""Refused messages of neighbours, counted by neighbour and reason; the first of each kind are logged.

Lines are limited for each neighbour, so that one that sends only garbage does not flood the log.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable

from peermask.node.lines import Line

LINES = 20  # logged for one neighbour; further ones are only counted


class Refusals:
    """Thread-safe: requests are refused in the transport's thread, answers in the agent's."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._counts: dict[int, Counter[str]] = defaultdict(Counter)
        self._said: dict[int, set[str]] = defaultdict(set)
        self._lock = threading.Lock()

    def note(self, neighbour: int, why: str, line: str) -> None:
        """Count a refusal, and log its line unless it was logged before."""
        with self._lock:
            self._counts[neighbour][why] += 1
            said = self._said[neighbour]
            if line in said or len(said) >= LINES:
                return
            said.add(line)
            last = len(said) == LINES
        self._say(Line(line, "refused", "warning", neighbour=neighbour, why=why))
        if last:
            self._say(
                f"agent {neighbour} was refused for {LINES} different reasons; further ones are counted, not logged"
            )

    def counts(self) -> dict[int, dict[str, int]]:
        """Neighbour -> why -> how often."""
        with self._lock:
            return {neighbour: dict(sorted(held.items())) for neighbour, held in sorted(self._counts.items())}
