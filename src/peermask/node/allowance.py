"""A rate limit for one neighbour: an amount that grows with time and with every published round.

The part for each round does not limit how fast a fleet is; the part for time is for agents that wait, retry or restart.
"""

from __future__ import annotations

from peermask.node.time_source import SYSTEM_TIME, TimeSource


class Allowance:
    """Starts with a minute's amount, which is also the maximum."""

    def __init__(self, per_minute: float, per_round: float, time: TimeSource = SYSTEM_TIME) -> None:
        self.per_minute, self.per_round, self.time = per_minute, per_round, time
        self.left = per_minute
        self.counted = self.time.monotonic()

    def new_round(self) -> None:
        """A round was published."""
        self._fill(self.per_round)

    def spend(self, amount: float) -> bool:
        """Whether anything is left; if so, subtract `amount`, which may go below zero and is refilled first."""
        now = self.time.monotonic()
        self._fill((now - self.counted) * self.per_minute / 60)
        self.counted = now
        if self.left <= 0:
            return False
        self.left -= amount
        return True

    def _fill(self, amount: float) -> None:
        self.left = min(self.left + amount, self.per_minute)
