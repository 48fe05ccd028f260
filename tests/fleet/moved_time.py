"""A clock that tests move: it goes on to the next deadline when every thread that takes part waits for one.

Computing takes no time, however slow the machine is, and waiting takes none of the test's. The thread that makes the
clock takes part, and so does every thread from its first wait on.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from peermask.fleet.environment import TimeSource

LOOK = 0.1  # real seconds between looks for threads that have ended
STUCK = 300.0  # real seconds after which a wait that nobody ends fails its test


class Waiter:
    def __init__(self, deadline):
        self.deadline, self.thread, self.woken, self.notified = deadline, threading.current_thread(), False, False
        self.event = threading.Event()


class MovedTime(TimeSource):
    """A clock that the test moves."""

    def __init__(self):
        self._elapsed, self._begun = 1000.0, datetime.now(UTC)
        self._running: set[object] = {threading.current_thread()}
        self._waiters: set[Waiter] = set()
        self._ended: set[threading.Thread] = set()  # of those that `start` began
        self._joined: dict[threading.Thread, set[threading.Thread]] = {}  # who waits -> for which threads
        self._actions: list[tuple[Any, ...]] = []  # a heap of when, number, what
        self._numbers = itertools.count()
        self._mutex = threading.RLock()

    def monotonic(self):
        with self._mutex:
            return self._elapsed

    def now(self):
        return self._begun + timedelta(seconds=self.monotonic() - 1000)

    def sleep(self, seconds):
        self.wait(self.waiter(seconds))

    def condition(self):
        return MovedCondition(self)

    def event(self):
        return MovedEvent(self)

    def later(self, seconds, action, *arguments):
        """Call something in `seconds`, in a thread that waits then."""
        with self._mutex:
            heapq.heappush(self._actions, (self._elapsed + seconds, next(self._numbers), action, arguments))

    def start(self, target, *arguments):
        """Start a thread that takes part from now on until it ends."""

        def run():
            try:
                target(*arguments)
            finally:
                self._end(thread)

        thread = threading.Thread(target=run, daemon=True)
        with self._mutex:
            self._running.add(thread)
        thread.start()
        return thread

    @contextmanager
    def away(self):
        """Meanwhile the clock goes on without this thread."""
        thread = threading.current_thread()
        self._leave(thread)
        try:
            yield
        finally:
            with self._mutex:
                self._running.add(thread)

    def join(self, *threads):
        """Wait until these threads have ended. The caller takes part again from the moment at which the last one ends:
        otherwise the clock would move on, past limits of others, until the system runs the caller."""
        joiner = threading.current_thread()
        with self._mutex:
            left = {thread for thread in threads if thread.is_alive()} - self._ended
            if left:
                self._joined[joiner] = left
                self._running.discard(joiner)
        self._move()
        for thread in threads:
            thread.join(STUCK)
            assert not thread.is_alive(), "a thread does not end"
        with self._mutex:
            self._joined.pop(joiner, None)
            self._running.add(joiner)

    def _end(self, thread):
        with self._mutex:
            self._ended.add(thread)
            for joiner, left in self._joined.items():
                left.discard(thread)
                if not left:
                    self._running.add(joiner)
        self._leave(thread)

    def until(self, holds, seconds=1000.0):
        """Let the others go on until something holds, at most for so long by this clock."""
        end = self.monotonic() + seconds
        while not holds():
            assert self.monotonic() < end, "what was waited for did not happen"
            self.sleep(0.05)

    def waiter(self, seconds):
        with self._mutex:
            waiter = Waiter(math.inf if seconds is None else self._elapsed + max(0.0, seconds))
            self._waiters.add(waiter)
            return waiter

    def wait(self, waiter):
        """Until the waiter is notified or its time is over; whether it was notified."""
        self._leave(waiter.thread, unless=waiter)
        looks = itertools.count()
        while not waiter.event.wait(LOOK):
            assert next(looks) * LOOK < STUCK, "nobody moved the clock or notified this thread"
            self._move()  # a thread may have ended, which tells nobody
        return waiter.notified

    def notify(self, waiters):
        with self._mutex:
            for waiter in waiters:
                waiter.notified = waiter.notified or not waiter.woken
                self._wake(waiter)

    def _wake(self, waiter):
        if not waiter.woken:
            waiter.woken = True
            self._waiters.discard(waiter)
            self._running.add(waiter.thread)  # counts as running before it runs
            waiter.event.set()

    def _leave(self, thread, unless=None):
        """This thread runs no longer; the last one to do so moves the clock."""
        with self._mutex:
            if unless is None or not unless.woken:
                self._running.discard(thread)
        self._move()

    def _move(self):
        """On to the next deadline, if nobody runs."""
        while True:
            with self._mutex:
                self._running = {one for one in self._running if not _has_ended(one)}
                planned = [when for when, *_ in self._actions[:1]]
                following = min([*planned, *(waiter.deadline for waiter in self._waiters)], default=math.inf)
                if self._running or following == math.inf:
                    return
                self._elapsed = max(self._elapsed, following)
                if not self._actions or self._actions[0][0] > self._elapsed:
                    for waiter in tuple(self._waiters):
                        if waiter.deadline <= self._elapsed:
                            self._wake(waiter)
                    return
                _, number, action, arguments = heapq.heappop(self._actions)
                self._running.add(number)  # so that no other thread moves the clock meanwhile
            action(*arguments)
            with self._mutex:
                self._running.discard(number)


def _has_ended(thread):
    return isinstance(thread, threading.Thread) and thread.ident is not None and not thread.is_alive()


class MovedCondition(threading.Condition):
    def __init__(self, time):
        super().__init__(threading.Lock())
        self.time, self.inside = time, []

    def wait(self, timeout=None):
        waiter = self.time.waiter(timeout)
        self.inside.append(waiter)
        self.release()
        try:
            return self.time.wait(waiter)
        finally:
            self.acquire()
            self.inside.remove(waiter)

    def wait_for(self, predicate, timeout=None):
        end = None if timeout is None else self.time.monotonic() + timeout
        while not predicate():
            left = None if end is None else end - self.time.monotonic()
            if left is not None and left <= 0:
                return False
            self.wait(left)
        return True

    def notify(self, n=1):
        self.time.notify([one for one in self.inside if not one.woken][:n])

    def notify_all(self):
        self.time.notify(self.inside)


class MovedEvent(threading.Event):
    def __init__(self, time):
        super().__init__()
        self.changed = time.condition()

    def set(self):
        with self.changed:
            super().set()
            self.changed.notify_all()

    def wait(self, timeout=None):
        with self.changed:
            return self.changed.wait_for(self.is_set, timeout)


class MovedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward."""

    ahead = 0.0

    def time(self):
        return super().time() + self.ahead

    def move(self, seconds):
        """From any thread: timers that are due by then run at once."""

        def put_forward():
            self.ahead += seconds

        self.call_soon_threadsafe(put_forward)
