"""A thread that watches for changes of the fleet, and applies them within seconds.

It checks the fleet file and the certificates every second, and asks neighbours for their roster every few seconds. A
newer roster takes effect immediately, even during a round: an agent that is no longer a neighbour gets no answers, and
its links are closed with the session. The agent exchanges messages with new neighbours from the next round on. If the
roster names authorities, they replace those in ca.pem, and the session is opened again.
"""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path

from peermask.errors import NodeError, PeermaskError
from peermask.fleet.authority import install_authorities, verifier
from peermask.fleet.credentials import MINUTES, Credentials, check_credentials, load_authorities, validity
from peermask.fleet.environment import SYSTEM_TIME, Line, ReconnectingTransport, TimeSource, Transport
from peermask.fleet.fleet import Fleet, FleetMember, write_fleet
from peermask.fleet.responder import Responder
from peermask.fleet.roster import read_file
from peermask.fleet.roster_gossip import FileWatch, RosterGossip, save_roster

CHECK_SECONDS = 1.0  # seconds between checks of files
CHECKS_PER_REQUEST = 5  # checks of files between requests to neighbours
REQUEST_PAUSE_SECONDS = 0.5  # seconds between such requests, at least
REOPEN_SECONDS = 30.0  # seconds between sessions that are opened because of a stale link, at least
THREAD_END_SECONDS = 30.0  # seconds to end what it does when the agent ends
EXPIRY_WARNING = timedelta(days=14)  # before a certificate expires

Open = Callable[[Fleet, Credentials | None], AbstractContextManager[Transport]]
Adopt = Callable[[Fleet, frozenset[int]], None]  # the new fleet, and neighbours whose old messages are to be dropped


class Watch:
    """Use as a context manager, which opens the transport."""

    def __init__(
        self,
        path: Path,
        agent: int,
        credentials: Credentials | None,
        rosters: RosterGossip,
        responder: Responder,
        transport: ReconnectingTransport,
        open_: Open,
        adopt: Adopt,
        roster_file: Path,
        time: TimeSource = SYSTEM_TIME,
    ) -> None:
        """Without `credentials` the fleet has no certificates. `roster_file`: the file for the latest roster."""
        self.path, self.agent, self.credentials, self.roster_file = path, agent, credentials, roster_file
        self.rosters, self.responder, self.transport = rosters, responder, transport
        self.open, self.adopt, self.say, self.time = open_, adopt, responder.say, time
        self.fleet = rosters.fleet  # the one in use
        self.valid: tuple[datetime, datetime] | None = None  # of the certificate in use
        self.left = False  # whether the agent was removed from the fleet
        files = {} if credentials is None else asdict(credentials)
        self._files = FileWatch(fleet=path, **files)
        self._due = False  # a session has to be opened, since the roster has changed or there is none
        self._renewed = False  # there may be a new certificate
        self._compared = -REQUEST_PAUSE_SECONDS  # when rosters were last compared
        self._reopened = -REOPEN_SECONDS  # when a session was last opened because of a stale link
        self._said: set[str] = set()
        self._crash: BaseException | None = None
        self._stop = time.event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    @property
    def ended(self) -> bool:
        """Whether the certificate in use has expired."""
        return self.valid is not None and self.time.now() > self.valid[1]

    def __enter__(self) -> Watch:
        self._reopen()
        self._warn_of_expiry()
        save_roster(self.fleet, self.roster_file)
        self._update_file()
        self.responder.rosters = self.rosters
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.rosters.news.set()
        self._thread.join(THREAD_END_SECONDS)
        if self._thread.is_alive():
            text = f"the thread of changes has not ended within {THREAD_END_SECONDS:.0f} s; ending without it"
            self.say(Line(text, "watch", "warning"))
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
            news = self.rosters.news.wait(CHECK_SECONDS)
            self.rosters.news.clear()
            try:
                if not news:
                    looks += 1
                    self._warn_of_expiry()
                    self._look()
                if self.rosters.fleet is not self.fleet:
                    self._apply(self.rosters.fleet)
                elif news or looks % CHECKS_PER_REQUEST == 1:
                    self._compare(self.responder.neighbours)
                if self._due or self._renewed:
                    self._take_certificate()
                else:
                    self._replace_stale_session()
            except PeermaskError as error:  # such as an incomplete file, or an address that is not up yet
                self._say_once(Line(str(error), "rejected", "warning"))

    def _look(self) -> None:
        """Read files that have changed."""
        changed = self._files.changed()
        self._renewed |= bool(changed - {"fleet"})
        if "ca" in changed and self.credentials is not None:
            with suppress(NodeError):  # _take_certificate says it
                self.rosters.verify = verifier(self.credentials.ca)
        if changed & {"fleet", "ca"}:
            self.rosters.take(read_file(self.path, self.fleet, self.rosters.verify))

    def _compare(self, neighbours: frozenset[int]) -> None:
        """Compare rosters with neighbours; limited, since a neighbour may announce a roster that it does not have."""
        self._stop.wait(max(0.0, self._compared + REQUEST_PAUSE_SECONDS - self.time.monotonic()))
        self._compared = self.time.monotonic()
        self.rosters.compare(self.transport, self.transport.alive() & neighbours)

    def _apply(self, fleet: Fleet) -> None:
        """Use a later roster."""
        before, self.fleet = _places(self.fleet, self.agent), fleet
        neighbours = frozenset(before) - {self.agent}
        try:
            try:
                self._install_authorities(fleet)
            finally:
                self._update_file()  # first: once the roster is saved, an operator may write the next one there
            save_roster(fleet, self.roster_file)  # afterwards: at the next start those of a saved one are not installed
        except PeermaskError as error:  # such as a full disk; it is used nevertheless
            self._say_once(Line(str(error), "rejected", "warning"))
        if self.agent in fleet.left:
            self.left = True
            self.responder.follow(())
            self.rosters.compare(self.transport, self.transport.alive() & neighbours)
            return
        places = _places(fleet, self.agent)
        others = frozenset(j for j in neighbours if places.get(j) != before[j])  # removed or changed
        self.responder.follow(frozenset(fleet.neighbours(self.agent)) - others)
        # Including removed ones, so that they learn of it.
        self.rosters.compare(self.transport, self.transport.alive() & neighbours)
        self._due |= places != before
        self.adopt(fleet, others)
        try:
            if self._due:
                self._take_certificate()
        finally:  # the old session is closed by now
            self.responder.follow(fleet.neighbours(self.agent))

    def _install_authorities(self, fleet: Fleet) -> None:
        """Trust the authorities of a roster; the session has to be opened again if they are others."""
        if self.credentials is None or not install_authorities(self.credentials.ca, fleet.authorities):
            return
        self._files.ignore("ca")
        self.rosters.verify, self._due = verifier(self.credentials.ca), True
        trusts = ("1 authority", "2 authorities")[len(load_authorities(self.credentials.ca)) - 1]
        self.say(Line(f"trusts {trusts} by roster {fleet.serial}", "roster"))

    def _update_file(self) -> None:
        """Write a later roster into the fleet file, so that operators on this device go by it.

        A file that was changed since it was last read is left alone: it may be somebody's work.
        """
        if self.credentials is None or not self._files.is_current("fleet"):
            return
        try:
            if tomllib.loads(self.path.read_text(encoding="utf-8")).get("serial", 0) >= self.fleet.serial:
                return
            mode = self.path.stat().st_mode & 0o777  # operators may be other users
            write_fleet(self.path, self.fleet)
            self.path.chmod(mode)
        except (OSError, ValueError, PeermaskError) as error:
            self._say_once(Line(f"{self.path} keeps its earlier roster: {error}", "roster", "warning"))
        self._files.ignore("fleet")

    def _take_certificate(self) -> None:
        """Reopen the session with the present certificate; if that is not valid, there is no session."""
        if self.credentials is not None:
            self._renewed = False
            try:
                check_credentials(self.fleet, self.credentials.ca.parent, self.agent, self.time.now())
            except PeermaskError as error:
                if self._due:
                    self.transport.close()
                    raise
                raise NodeError(f"{error}; until then the certificate in use stays") from None
        self._reopen()

    def _reopen(self) -> None:
        self._due, before = True, self.valid
        self.valid = None if self.credentials is None else validity(self.credentials)
        self.transport.open(self.open(self.fleet, self.credentials), self.fleet.neighbours(self.agent))
        self._due = False
        if before is not None and self.valid is not None and before != self.valid:
            self.say(f"has a new certificate, which expires {self.valid[1]:{MINUTES}}")

    def _replace_stale_session(self) -> None:
        """Reopen the session if a link is stale; limited, since other neighbours wait meanwhile."""
        stale = self.transport.stale_links()
        if stale and self.time.monotonic() > self._reopened + REOPEN_SECONDS:
            self._reopened = self.time.monotonic()
            self._reopen()
            text = f"reopened its session: the link to agent {', '.join(map(str, sorted(stale)))} was stale"
            self.say(Line(text, "stale", "warning", neighbours=sorted(stale)))

    def _warn_of_expiry(self) -> None:
        if self.valid is None:
            return
        begin, end = self.valid
        left = end - self.time.now()
        if left < min(EXPIRY_WARNING, (end - begin) / 3):
            renew = f"run `peermask fleet renew FLEET {self.agent}` before"
            text = f"its certificate expires {end:{MINUTES}}; {renew}"
            self._say_once(Line(text, "certificate", "warning", ends=f"{end:{MINUTES}}"), f"{end} {left.days}")

    def _say_once(self, line: str, key: str | None = None) -> None:
        if (key or line) not in self._said:
            self._said.add(key or line)
            self.say(line)


def _places(fleet: Fleet, agent: int) -> dict[int, FleetMember]:
    """An agent and its neighbours, with everything that a session depends on."""
    return {j: fleet.member(j) for j in (agent, *fleet.neighbours(agent))}
