"""Which ranks are alive: every rank sends a heartbeat each second, and one that leaves early says why.

A rank that is killed closes its connections, so the others notice at once that a rank is gone, and find out here which
one. One that vanishes with its host is noticed only by its missing heartbeats.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from torch.distributed import Store  # type: ignore[attr-defined]

from peermask.errors import LostRankError, PeermaskError

BEAT = 1.0  # seconds between two signs of life
SILENT = 5.0  # without one, once a connection is broken: that rank is dead
GONE = 30.0  # without one, even if connections are open
LEAVE = 10.0  # that the others, or a thread that waits for a device, have to leave by themselves
NO_REMEDY = "start it again"


@dataclass(frozen=True)
class RankInfo:
    """One rank, as it introduced itself."""

    rank: int
    host: str
    process: int

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.process} on {self.host})"


@dataclass(frozen=True)
class Farewell:
    """Why a rank left, and which ranks it had lost."""

    code: int
    text: str
    lost: tuple[int, ...] = ()


class Watch:
    """Monitors the other ranks from two threads, by its own connection to the store.

    One sends and checks heartbeats, and hangs if the store cannot be reached. The other does not use the store: it
    ends this process if there is a reason to and the process hangs, waiting for a rank that is cut off.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        members: Sequence[RankInfo],
        keeper: str,
        fate: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        self.store, self.rank, self.members, self.keeper = store, rank, members, keeper
        self.fate = fate  # what became of a rank that this process started, if it has ended
        self.remedy = NO_REMEDY
        self._others = [member.rank for member in members if member.rank != rank]
        self._signs = dict.fromkeys(self._others, "")
        self._seen = dict.fromkeys(self._others, time.monotonic())
        self._farewells: dict[int, Farewell] = {}
        self._store_is_gone = False
        self._looked = time.monotonic()
        self._own = 0
        self._silent, self._stopped = threading.Event(), threading.Event()
        self._give_sign()
        self._signs_thread = threading.Thread(target=self._give_signs, name="signs of life", daemon=True)
        self._guard_thread = threading.Thread(target=self._guard, name="guard", daemon=True)

    def start(self) -> None:
        self._signs_thread.start()
        self._guard_thread.start()

    def stop(self) -> None:
        self._silent.set()
        self._stopped.set()
        for thread in (self._signs_thread, self._guard_thread):
            if thread.is_alive():
                thread.join(2 * BEAT)  # not for ever: the store may be out of reach

    def lost(self, error: BaseException) -> LostRankError:
        """A connection is broken: find out which rank is gone."""
        until = time.monotonic() + GONE
        while time.monotonic() < until:
            cause = self._cause(SILENT)
            if cause is not None:
                return LostRankError(cause.text, cause.code, cause.lost)
            time.sleep(BEAT / 5)
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return LostRankError(f"the connection between the ranks broke ({first}); {self.remedy}")

    def leave(self, error: BaseException) -> Farewell:
        """Say why this rank goes; the line and code that all go with, which are the first rank's if it has any."""
        if isinstance(error, PeermaskError):
            own = Farewell(error.exit_code, str(error), getattr(error, "ranks", ()))
        elif isinstance(error, KeyboardInterrupt):
            own = Farewell(130, f"{self.members[self.rank]} was interrupted; {self.remedy}")
        else:
            own = Farewell(1, f"{self.members[self.rank]} failed: {type(error).__name__}: {error}")
        self._silent.set()
        self._signs_thread.join(2 * BEAT)
        self._give_sign(own)
        until = time.monotonic() + (0 if isinstance(error, KeyboardInterrupt) else LEAVE)
        while time.monotonic() < until and not self._store_is_gone:
            self._look()
            if self.rank and 0 in self._farewells:
                return self._farewells[0]
            waits_for = [0] if self.rank else self._others  # the first rank may keep the store, and goes last
            if not [other for other in waits_for if other not in self._farewells and not self._is_dead(other, SILENT)]:
                break
            time.sleep(BEAT / 5)
        return own

    def speaks(self, farewell: Farewell) -> bool:
        """Whether this rank prints the line: the lowest of its host that is left."""
        host = self.members[self.rank].host
        return self.rank == min(m.rank for m in self.members if m.host == host and m.rank not in farewell.lost)

    def _give_signs(self) -> None:
        while not self._silent.wait(BEAT):
            self._give_sign()
            self._look()

    def _guard(self) -> None:
        since: float | None = None
        while not self._stopped.wait(BEAT):
            cause = self._cause(GONE)
            since = None if cause is None else since or time.monotonic()
            if cause is not None and since is not None and time.monotonic() - since > LEAVE + SILENT:
                if self.speaks(cause):
                    print(f"peermask: {cause.text}", file=sys.stderr, flush=True)
                os._exit(cause.code)

    def _give_sign(self, farewell: Farewell | None = None) -> None:
        self._own += 1
        sign = {"beat": self._own, "farewell": None if farewell is None else asdict(farewell)}
        try:
            self.store.set(f"sign/{self.rank}", json.dumps(sign))
        except RuntimeError:
            self._store_is_gone = True

    def _look(self) -> None:
        try:
            signs = self.store.multi_get([f"sign/{other}" for other in self._others])
        except RuntimeError:
            self._store_is_gone = True
            return
        self._looked = time.monotonic()
        for other, sign in zip(self._others, (given.decode() for given in signs), strict=True):
            if sign != self._signs[other]:
                self._signs[other], self._seen[other] = sign, time.monotonic()
                farewell = json.loads(sign)["farewell"]
                if farewell is not None:
                    self._farewells[other] = Farewell(farewell["code"], farewell["text"], tuple(farewell["lost"]))

    def _cause(self, limit: float) -> Farewell | None:
        """The reason to leave, if there is one: what a leaving rank said, or which rank is dead."""
        for other in self._others:
            if (told := self._farewells.get(other)) is not None:
                about = told.text if told.lost or not other else f"{self.members[other]}: {told.text}"
                return Farewell(told.code, about, told.lost)
        unreachable = time.monotonic() - self._looked > GONE
        for other in self._others:
            if self._is_dead(other, limit) and not unreachable:
                return self._died(other, self.fate(other) or ("died" if limit < GONE else "died or is cut off"))
        if unreachable or self._store_is_gone:
            if self.keeper == "rank 0":
                return self._died(0, "died or is cut off" if unreachable else "died")
            return Farewell(LostRankError.exit_code, f"{self.keeper} is gone; {self.remedy}")
        return None

    def _died(self, rank: int, became: str) -> Farewell:
        text = f"{self.members[rank]} {became}; what was saved is whole: {self.remedy}"
        return Farewell(LostRankError.exit_code, text, (rank,))

    def _is_dead(self, other: int, limit: float) -> bool:
        return self.fate(other) is not None or time.monotonic() - self._seen[other] > limit
