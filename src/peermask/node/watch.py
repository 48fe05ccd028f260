"""A second thread that watches for changes of the fleet, and applies them within seconds.

It checks the fleet file and the certificate every second, and asks neighbours for their roster every few seconds. What
a newer roster removes is removed at once: an agent that is no longer a neighbour gets no answer, and its links are
closed with the session, even during a round. The neighbours that are heard change between two rounds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from peermask.errors import PeermaskError
from peermask.node.credentials import MINUTES, Credentials, check_credentials, validity
from peermask.node.fleet import Fleet, FleetMember
from peermask.node.lines import Line
from peermask.node.reopening import Reopening
from peermask.node.responder import Responder
from peermask.node.roster import read_file
from peermask.node.rosters import Rosters, keep, stamp
from peermask.node.transport import Transport

LOOK = 1.0  # seconds between looks at files
ASK = 5  # looks between questions to neighbours
PAUSE = 0.5  # seconds between them at least
HEAR_AGAIN = 30.0  # seconds between sessions that are opened to hear a neighbour again
SOON = timedelta(days=14)

Open = Callable[[Fleet, Credentials | None], AbstractContextManager[Transport]]
Adopt = Callable[[Fleet, frozenset[int]], None]  # the fleet from now on, and neighbours whose old messages are void


class Watch:
    """Use as a context manager, which opens the transport."""

    def __init__(
        self,
        path: Path,
        agent: int,
        credentials: Credentials | None,
        rosters: Rosters,
        responder: Responder,
        transport: Reopening,
        open_: Open,
        adopt: Adopt,
        kept: Path,
    ) -> None:
        """Without `credentials` the fleet is one without certificates. `kept` is where the latest roster goes."""
        self.path, self.agent, self.credentials, self.kept = path, agent, credentials, kept
        self.rosters, self.responder, self.transport = rosters, responder, transport
        self.open, self.adopt, self.say = open_, adopt, responder.say
        self.fleet = rosters.fleet  # the one in force
        self.valid: tuple[datetime, datetime] | None = None  # of the certificate in use
        self.left = False  # whether the agent itself has
        self._files = self._seen = self._stamps()  # in use, and at the last look
        self._due = False  # the session is of another roster, or there is none
        self._renewed = False  # there may be a new certificate
        self._compared = 0.0  # when rosters were
        self._heard_again = -HEAR_AGAIN  # when a session was opened to hear a neighbour
        self._said: set[str] = set()
        self._crash: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    @property
    def ended(self) -> bool:
        """Whether the certificate in use has."""
        return self.valid is not None and datetime.now(UTC) > self.valid[1]

    def __enter__(self) -> Watch:
        self._reopen()
        self._mind_the_end()
        keep(self.fleet, self.kept)
        self.responder.rosters = self.rosters
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.rosters.news.set()
        self._thread.join()
        if self._crash is not None:
            raise self._crash

    @property
    def is_over(self) -> bool:
        """Whether the agent has to stop: its certificate has expired, it was removed, or this thread has failed."""
        return self.ended or self.left or self._crash is not None

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:
            self._crash = error

    def _watch(self) -> None:
        looks = 0
        while not self._stop.is_set():
            found = self.rosters.news.wait(LOOK)
            self.rosters.news.clear()
            try:
                if not found:
                    looks += 1
                    self._mind_the_end()
                    self._look()
                if self.rosters.fleet is not self.fleet:
                    self._put_into_force(self.rosters.fleet)
                elif found or looks % ASK == 1:
                    self._compare(self.responder.neighbours)
                if self._due or self._renewed:
                    self._take_certificate()
                else:
                    self._hear_again()
            except PeermaskError as error:  # such as a file that is not whole yet, or an address that is not up
                self._say_once(str(error))

    def _look(self) -> None:
        """Read files that have changed, once they are stable between two checks: copying takes time."""
        now = self._stamps()
        settled, self._seen = now == self._seen, now
        changed = {name for name in now if now[name] != self._files[name]}
        if not changed or not settled:
            return
        self._files = now
        self._renewed |= self.credentials is not None and bool(changed - {"fleet"})
        if "fleet" in changed:
            self.rosters.take(read_file(self.path, self.fleet, self.rosters.verify))

    def _compare(self, neighbours: frozenset[int]) -> None:
        """Of rosters; not so often that a neighbour which announces one it does not have keeps others busy."""
        self._stop.wait(max(0.0, self._compared + PAUSE - time.monotonic()))
        self._compared = time.monotonic()
        self.rosters.compare(self.transport, self.transport.alive() & neighbours)

    def _put_into_force(self, fleet: Fleet) -> None:
        before, self.fleet = _places(self.fleet, self.agent), fleet
        known = frozenset(before) - {self.agent}
        keep(fleet, self.kept)
        if self.agent in fleet.left:
            self.left = True
            self.responder.follow(())
            self.rosters.compare(self.transport, self.transport.alive() & known)
            return
        places = _places(fleet, self.agent)
        others = frozenset(j for j in known if places.get(j) != before[j])  # removed or changed
        self.responder.follow(frozenset(fleet.neighbours(self.agent)) - others)
        self.rosters.compare(self.transport, self.transport.alive() & known)  # also removed ones, so that they know
        self._due |= places != before
        self.adopt(fleet, others)
        try:
            if self._due:
                self._take_certificate()
        finally:  # by now no session of before is open
            self.responder.follow(fleet.neighbours(self.agent))

    def _take_certificate(self) -> None:
        """Reopen the session with the present certificate; without a valid one there is no session."""
        if self.credentials is not None:
            self._renewed = False
            try:
                check_credentials(self.fleet, self.credentials.ca.parent, self.agent)
            except PeermaskError:
                if self._due:
                    self.transport.close()
                raise
        self._reopen()

    def _reopen(self) -> None:
        self._due, before = True, self.valid
        self.valid = None if self.credentials is None else validity(self.credentials)
        self.transport.open(self.open(self.fleet, self.credentials), self.fleet.neighbours(self.agent))
        self._due = False
        if before is not None and self.valid is not None and before != self.valid:
            self.say(f"has a new certificate, which ends {self.valid[1]:{MINUTES}}")

    def _hear_again(self) -> None:
        """Open the session anew where that is needed to hear a neighbour; not so often that others suffer."""
        deaf = self.transport.deaf_to()
        if deaf and time.monotonic() > self._heard_again + HEAR_AGAIN:
            self._heard_again = time.monotonic()
            self._reopen()
            self.say(f"opened its links anew to hear agent {', '.join(map(str, sorted(deaf)))}")

    def _mind_the_end(self) -> None:
        if self.valid is None:
            return
        begin, end = self.valid
        left = end - datetime.now(UTC)
        if left < min(SOON, (end - begin) / 3):
            renew = f"until then run `peermask fleet renew FLEET {self.agent}`"
            text = f"its certificate ends {end:{MINUTES}}; {renew}"
            self._say_once(Line(text, "certificate", "warning", ends=f"{end:{MINUTES}}"), f"{end} {left.days}")

    def _stamps(self) -> dict[str, Any]:
        files = {"fleet": self.path}
        if self.credentials is not None:
            files |= {"certificate": self.credentials.certificate, "key": self.credentials.key}
        return {name: stamp(path) for name, path in files.items()}

    def _say_once(self, line: str, key: str | None = None) -> None:
        if (key or line) not in self._said:
            self._said.add(key or line)
            self.say(line)


def _places(fleet: Fleet, agent: int) -> dict[int, FleetMember]:
    """An agent and its neighbours, with all that a session depends on."""
    return {j: fleet.member(j) for j in (agent, *fleet.neighbours(agent))}
