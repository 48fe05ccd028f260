"""The status of an agent: updated by its reports, read by metrics, health checks and operators.

An observer that forwards everything. A report costs a few additions; everything else is computed on request.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from peermask.fleet.fleet import Fleet
from peermask.fleet.puller import Absence
from peermask.fleet.responder import Responder
from peermask.fleet.roster import digest_of
from peermask.fleet.time_source import SYSTEM_TIME, TimeSource
from peermask.store.checkpoint import list_checkpoints
from peermask.store.folder import RunFolder

# The status of an agent after a round, and who is told of it.


@dataclass(frozen=True)
class Report:
    round: int
    rounds: int
    accuracy: float | None  # in the last evaluation
    evaluated: int  # round of that evaluation; 0: none yet
    sent_bytes: float
    alive: int
    neighbours: int
    absent: tuple[Absence, ...]
    figure: str = "accuracy"  # the figure that `accuracy` is, by the task
    loss: float | None = None  # in the last round


class AgentObserver(Protocol):
    """Is told of an agent's rounds, and given lines for its log."""

    def say(self, line: str) -> None: ...
    def round(self, report: Report) -> None: ...


BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # seconds of a round, upper ends


@dataclass(frozen=True)
class AgentStatus:
    """The status of an agent at one moment; counts are since its process started."""

    agent: int
    run: str
    version: str
    trouble: str | None  # why it is not healthy
    round: int
    rounds: int
    loss: float | None
    figure: str  # what `accuracy` is
    accuracy: float | None
    sent_bytes: int
    received_bytes: int
    sent: dict[int, int]  # messages, by neighbour
    received: dict[int, int]
    neighbours: int
    alive: int
    heard: int  # neighbours whose message arrived in the last round
    absences: dict[int, dict[str, int]]  # neighbour -> why -> rounds
    last_absence: dict[str, Any] | None  # round, neighbour, why
    refusals: dict[int, dict[str, int]]  # neighbour -> why -> how often
    seconds: float  # of all rounds timed
    buckets: tuple[int, ...]  # rounds by BUCKETS; the last counts longer ones
    checkpoint_age: float | None  # seconds
    certificate_ends: float | None  # seconds since 1970
    roster: int  # its number
    roster_digest: str  # the same on all agents with this number

    def table(self) -> dict[str, Any]:
        return asdict(self)


def patience_of(fleet: Fleet) -> float:
    """After how many seconds without the end of a round something is wrong: longer than any limit of the fleet."""
    return 2 * max(fleet.start_limit, fleet.wait_limit if fleet.missing == "wait" else fleet.round_deadline) + 30


class StatusMonitor:
    """Thread-safe: the agent reports, other threads read."""

    def __init__(
        self,
        observer: AgentObserver,
        fleet: Fleet,
        agent: int,
        ends: Callable[[], datetime | None] = lambda: None,
        stalled_after: float | None = None,
        time: TimeSource = SYSTEM_TIME,
    ) -> None:
        """`ends`: when the agent's certificate expires."""
        self.observer, self.fleet, self.agent, self.ends = observer, fleet, agent, ends
        self.stalled_after = patience_of(fleet) if stalled_after is None else stalled_after
        self.time = time
        self.version = version("peermask")
        self.responder: Responder | None = None
        self.folder: RunFolder | None = None
        self.latest: Callable[[], Fleet] = lambda: fleet  # by the roster in use
        links = len(fleet.neighbours(agent))
        self._report = Report(0, fleet.experiment.rounds, None, 0, 0.0, 0, links, ())
        self._ended: float | None = None  # when the last round ended
        self._quiet_since = self.time.monotonic()  # when a round last ended, or the start
        self._over = False
        self._seconds = 0.0
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._absences: dict[int, Counter[str]] = defaultdict(Counter)
        self._last_absence: dict[str, Any] | None = None
        self._lock = threading.Lock()

    def follow(self, responder: Responder, out: Path) -> None:
        """Where counts and checkpoints are found, once the agent has them."""
        self.responder, self.folder = responder, RunFolder(out)

    def say(self, line: str) -> None:
        self.observer.say(line)

    def round(self, report: Report) -> None:
        with self._lock:
            if report.round > self._report.round:
                self._count(report)
            self._report, self._over = report, report.round >= report.rounds
        self.observer.round(report)

    def _count(self, report: Report) -> None:
        now = self.time.monotonic()
        if self._ended is not None:  # the first round after a start includes waiting for the others
            self._seconds += now - self._ended
            self._buckets[bisect_left(BUCKETS, now - self._ended)] += 1
        self._ended = self._quiet_since = now
        for absence in report.absent:
            self._absences[absence.neighbour][absence.why.partition(" ")[0]] += 1
            self._last_absence = {"round": absence.round, "neighbour": absence.neighbour, "why": absence.why}

    def trouble(self) -> str | None:
        """Why it is not healthy; None while rounds end in time, or after the last."""
        with self._lock:
            idle, report, over = self.time.monotonic() - self._quiet_since, self._report, self._over
        if over or idle <= self.stalled_after:
            return None
        since = f"after round {report.round} of {report.rounds}" if self._ended is not None else "since its start"
        return (
            f"no round has ended for {idle:.0f} s, {since}; neighbours connected: {report.alive} of {report.neighbours}"
        )

    def standing(self) -> AgentStatus:
        trouble, end = self.trouble(), self.ends()
        with self._lock:
            report, seconds, buckets = self._report, self._seconds, tuple(self._buckets)
            absences = {j: dict(sorted(counts.items())) for j, counts in sorted(self._absences.items())}
            last_absence = self._last_absence
        responder = self.responder
        sent = responder.sent.totals() if responder is not None else None
        received = responder.received.totals() if responder is not None else None
        return AgentStatus(
            agent=self.agent,
            run=self.fleet.run,
            version=self.version,
            trouble=trouble,
            round=report.round,
            rounds=report.rounds,
            loss=report.loss,
            figure=report.figure,
            accuracy=report.accuracy,
            sent_bytes=sum(sent.bytes.values()) if sent else 0,
            received_bytes=sum(received.bytes.values()) if received else 0,
            sent=sent.messages if sent else {},
            received=received.messages if received else {},
            neighbours=report.neighbours,
            alive=report.alive,
            heard=report.neighbours - len(report.absent) if report.round else 0,
            absences=absences,
            last_absence=last_absence,
            refusals=responder.refusals.counts() if responder is not None else {},
            seconds=seconds,
            buckets=buckets,
            checkpoint_age=self._checkpoint_age(),
            certificate_ends=None if end is None else end.timestamp(),
            roster=self.latest().serial,
            roster_digest=digest_of(self.latest()).hex(),
        )

    def _checkpoint_age(self) -> float | None:
        try:
            saved = list_checkpoints(self.folder.checkpoints) if self.folder is not None else []
            return max(0.0, self.time.now().timestamp() - saved[-1].stat().st_mtime) if saved else None
        except OSError:  # the next checkpoint has just replaced it
            return 0.0
