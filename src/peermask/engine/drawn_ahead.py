"""Batches of the next round, drawn by another thread while the device is at work on this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from peermask.algorithms.contract import Clock
from peermask.engine.feed import Draw, Feed


class DrawnAhead:
    """`draws` in each step of a round, and `start` at its end."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)
        self.ahead: dict[Clock, Future[list[Draw]]] = {}
        self.following: dict[Clock, Callable[[Clock], list[Draw]]] = {}  # not begun yet

    def draws(self, feed: Feed, clock: Clock, steps: Iterable[int]) -> list[Draw]:
        """What this round's batches are made of, one for each step; the same steps of the next round will follow."""

        def drawn(clock: Clock) -> list[Draw]:
            return [feed.draw(clock, step) for step in steps]

        self.following[replace(clock, round=clock.round + 1)] = drawn
        ahead = self.ahead.pop(clock, None)
        return drawn(clock) if ahead is None else ahead.result()

    def start(self) -> None:
        """Begin to draw what follows; called after a round was issued, since drawing takes Python's lock from that."""
        for clock, drawn in self.following.items():
            self.ahead[clock] = self.thread.submit(drawn, clock)
        self.following.clear()
