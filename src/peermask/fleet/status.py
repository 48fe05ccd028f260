"""The status of an agent: its state with the reasons, updated by its reports, read by metrics and operators.

    ok         rounds end in time, or are finished
    degraded   rounds end, but the agent learns with less than it should, or more slowly
    failing    no round has ended for longer than any limit of the fleet

`StatusMonitor` is an observer that forwards everything. A report costs a few additions; the rest is
computed on request.
"""

from __future__ import annotations

import shutil
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from peermask.fleet.environment import SYSTEM_TIME, TimeSource
from peermask.fleet.fleet import Fleet
from peermask.fleet.puller import Absence
from peermask.fleet.responder import Responder
from peermask.fleet.roster import digest_of
from peermask.store.checkpoint import list_checkpoints
from peermask.store.folder import RunFolder
from peermask.wire.mailbox import KEPT_ROUNDS

State = Literal["ok", "degraded", "failing"]
STATES: tuple[State, ...] = get_args(State)
BEHIND_ROUNDS = KEPT_ROUNDS  # more than these, and neighbours no longer have the rounds that the agent needs
COSTLY_ROUNDS = 2  # rounds whose whole time limit a neighbour may use up before it is named


@dataclass(frozen=True)
class Health:
    state: State = "ok"
    reasons: tuple[str, ...] = ()

    @property
    def trouble(self) -> str | None:
        return "; ".join(self.reasons) or None

    def __str__(self) -> str:
        return self.state if not self.reasons else f"{self.state}: {self.trouble}"


def assess(
    *,
    neighbours: int,
    heard: int,
    refused: int,
    behind: int,
    costly: Collection[int],
    idle: str | None = None,
    failing: bool = False,
) -> Health:
    """The state by counts of the last round.

    `refused`: neighbours that refuse this agent or are refused; `behind`: rounds that most neighbours are ahead;
    `costly`: neighbours that used up the time limit of several rounds; `idle`: for how long no round has ended.
    """
    reasons = [] if idle is None else [idle]
    if neighbours and refused >= neighbours:
        reasons.append(f"refused by all {neighbours} neighbours")
    elif 2 * heard < neighbours:
        reasons.append(f"hears {heard} of {neighbours} neighbours")
    if behind > BEHIND_ROUNDS:
        reasons.append(f"{behind} rounds behind its neighbours")
    if costly:
        named = ", ".join(map(str, sorted(costly)))
        reasons.append(f"agent {named} used up the time limit of {COSTLY_ROUNDS} rounds or more")
    return Health("failing" if failing else "degraded" if reasons else "ok", tuple(reasons))


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
    behind: int = 0  # rounds that most neighbours are ahead


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
    state: State
    trouble: str | None  # why it is not ok
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
    heard_ages: dict[int, float]  # seconds since a message of each neighbour arrived, or since the start
    behind: int  # rounds that most neighbours are ahead
    absences: dict[int, dict[str, int]]  # neighbour -> why -> rounds
    last_absence: dict[str, Any] | None  # round, neighbour, why
    refusals: dict[int, dict[str, int]]  # bad messages: neighbour -> why -> how often
    out_of_step: dict[int, dict[str, int]]  # the same for messages of another round, which honest neighbours send
    seconds: float  # of all rounds timed
    buckets: tuple[int, ...]  # rounds by BUCKETS; the last counts longer ones
    checkpoint_age: float | None  # seconds
    connections: int | None  # at the gate; None without certificates
    disk_free: int | None  # bytes, where its folder is
    certificate_ends: float | None  # seconds since 1970
    roster: int  # its number
    roster_digest: str  # the same on all agents with this number


def patience_of(fleet: Fleet, limit: float) -> float:
    """After how many seconds without the end of a round something is wrong, if a round may wait `limit` seconds."""
    return 2 * max(fleet.start_limit, limit) + 30


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
        self.stalled_after = patience_of(fleet, fleet.round_limit) if stalled_after is None else stalled_after
        self.time = time
        self.version = version("peermask")
        self.responder: Responder | None = None
        self.folder: RunFolder | None = None
        self.latest: Callable[[], Fleet] = lambda: fleet  # by the roster in use
        self.connections: Callable[[], int | None] = lambda: None  # at the gate
        self.connected: Callable[[], Collection[int]] | None = None  # which neighbours are, once there is a session
        links = len(fleet.neighbours(agent))
        self._report = Report(0, fleet.experiment.rounds, None, 0, 0.0, 0, links, ())
        self._ended: float | None = None  # when the last round ended
        self._started = self._quiet_since = self.time.monotonic()  # when a round last ended, or the start
        self._over = False
        self._seconds = 0.0
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._absences: dict[int, Counter[str]] = defaultdict(Counter)
        self._last_absence: dict[str, Any] | None = None
        self._costs: Counter[int] = Counter()  # rounds that a neighbour used up since it was last heard
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
        slow = self._ended is not None and now - self._ended >= self.fleet.round_limit
        late = {absence.neighbour for absence in report.absent if slow and absence.why != "gone"}
        absent = {absence.neighbour for absence in report.absent}
        self._costs = Counter({j: self._costs[j] + (j in late) for j in absent})
        if self._ended is not None:  # the first round after a start includes waiting for the others
            self._seconds += now - self._ended
            self._buckets[bisect_left(BUCKETS, now - self._ended)] += 1
        self._ended = self._quiet_since = now
        for absence in report.absent:
            self._absences[absence.neighbour][absence.why.partition(" ")[0]] += 1
            self._last_absence = {"round": absence.round, "neighbour": absence.neighbour, "why": absence.why}

    def health(self) -> Health:
        """The state of the agent now; ok after its last round."""
        with self._lock:
            idle, report, over = self.time.monotonic() - self._quiet_since, self._report, self._over
            costly = [j for j, rounds in self._costs.items() if rounds >= COSTLY_ROUNDS]
        if over:
            return Health()
        refused = {absence.neighbour for absence in report.absent if absence.why.startswith("refused")}
        heard = report.neighbours - len(report.absent)
        if self.responder is not None:
            refused |= self.responder.incompatible
            heard = heard if report.round else len(self.responder.met)  # none is due before the first round
        # With `wait` one dead neighbour stops all rounds for much longer.
        late = idle > min(self.stalled_after, patience_of(self.fleet, self.fleet.round_deadline))
        return assess(
            neighbours=report.neighbours,
            heard=heard,
            refused=len(refused),
            # in an asynchronous run every agent plays at its own pace
            behind=report.behind if self.fleet.experiment.asynchronous is None else 0,
            costly=costly,
            idle=self._idle(idle, report) if late else None,
            failing=idle > self.stalled_after,
        )

    def _idle(self, seconds: float, report: Report) -> str:
        since = f"after round {report.round} of {report.rounds}" if report.round else "since its start"
        silent = [str(j) for j, age in self._heard_ages(self.latest()).items() if age >= seconds]
        return f"no round has ended for {seconds:.0f} s, {since}; not heard since then: {', '.join(silent) or 'none'}"

    def status(self) -> AgentStatus:
        health, end, fleet = self.health(), self.ends(), self.latest()
        with self._lock:
            report, seconds, buckets = self._report, self._seconds, tuple(self._buckets)
            absences = {j: dict(sorted(counts.items())) for j, counts in sorted(self._absences.items())}
            last_absence = self._last_absence
        responder = self.responder
        nothing: tuple[dict[int, int], dict[int, int]] = ({}, {})
        sent, sent_bytes = nothing if responder is None else responder.sent.totals()
        received, received_bytes = nothing if responder is None else responder.received.totals()
        return AgentStatus(
            agent=self.agent,
            run=self.fleet.run,
            version=self.version,
            state=health.state,
            trouble=health.trouble,
            round=report.round,
            rounds=report.rounds,
            loss=report.loss,
            figure=report.figure,
            accuracy=report.accuracy,
            sent_bytes=sum(sent_bytes.values()),
            received_bytes=sum(received_bytes.values()),
            sent=sent,
            received=received,
            neighbours=report.neighbours,
            alive=report.alive
            if self.connected is None
            else len({*self.connected()} & {*fleet.neighbours(self.agent)}),
            heard=report.neighbours - len(report.absent) if report.round else 0,
            heard_ages=self._heard_ages(fleet),
            behind=report.behind,
            absences=absences,
            last_absence=last_absence,
            refusals=responder.refusals.counts(False) if responder is not None else {},
            out_of_step=responder.refusals.counts(True) if responder is not None else {},
            seconds=seconds,
            buckets=buckets,
            checkpoint_age=self._checkpoint_age(),
            connections=self.connections(),
            disk_free=self._disk_free(),
            certificate_ends=None if end is None else end.timestamp(),
            roster=fleet.serial,
            roster_digest=digest_of(fleet).hex(),
        )

    def _heard_ages(self, fleet: Fleet) -> dict[int, float]:
        now, last = self.time.monotonic(), self.responder.received.last() if self.responder is not None else {}
        return {j: now - last.get(j, self._started) for j in fleet.neighbours(self.agent)}

    def _disk_free(self) -> int | None:
        try:
            return shutil.disk_usage(self.folder.path).free if self.folder is not None else None
        except OSError:  # the folder does not exist yet
            return None

    def _checkpoint_age(self) -> float | None:
        try:
            saved = list_checkpoints(self.folder.checkpoints) if self.folder is not None else []
            return max(0.0, self.time.now().timestamp() - saved[-1].stat().st_mtime) if saved else None
        except OSError:  # the next checkpoint has just replaced it
            return 0.0
