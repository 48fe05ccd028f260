"""How much one neighbour may ask for: an amount that grows with time, and with every round there is to ask for.

The second part lets a fleet be as fast as it can; the first is for agents that wait, ask again, or have restarted.
"""

from __future__ import annotations

import time


class Allowance:
    """Begins full; holds no more than a minute's worth."""

    def __init__(self, per_minute: float, per_round: float) -> None:
        self.per_minute, self.per_round = per_minute, per_round
        self.left = per_minute
        self.counted = time.monotonic()

    def new_round(self) -> None:
        """Something was published."""
        self._fill(self.per_round)

    def spend(self, amount: float) -> bool:
        """Take `amount` if there is any left; the last may go below zero, and is then paid back first."""
        now = time.monotonic()
        self._fill((now - self.counted) * self.per_minute / 60)
        self.counted = now
        if self.left <= 0:
            return False
        self.left -= amount
        return True

    def _fill(self, amount: float) -> None:
        self.left = min(self.left + amount, self.per_minute)
