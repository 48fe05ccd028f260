"""Which roster an agent uses, and how it shares it with its neighbours.

After two agents compare rosters, both have the newer one: the asked agent sends its own if that is newer, otherwise the
asking one does. So a roster that reaches one agent reaches all that are linked, hop by hop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from peermask.errors import NodeError, WireError
from peermask.files import write_atomically
from peermask.fleet.admission import Refusals
from peermask.fleet.environment import SYSTEM_TIME, Line, Reply, TimeSource, Transport
from peermask.fleet.fleet import Fleet
from peermask.fleet.messages import RosterMessage, decode_roster_message
from peermask.fleet.roster import Verify, digest_of, encode_roster, read_signed, signed_roster

ANSWER_SECONDS = 1.0  # seconds a neighbour has to answer


class FileWatch:
    """Notices that files have changed, once they are the same in two checks: copying takes time."""

    def __init__(self, **paths: Path) -> None:
        self.paths = paths
        self._used = self._seen = self._stamps()

    def changed(self) -> set[str]:
        """Names of the files that have changed since the last call that named them."""
        now = self._stamps()
        settled, self._seen = now == self._seen, now
        changed = {name for name in now if now[name] != self._used[name]} if settled else set()
        self._used = self._used | {name: now[name] for name in changed}
        return changed

    def is_current(self, name: str) -> bool:
        return self._stamps()[name] == self._used[name]

    def ignore(self, name: str) -> None:
        """Do not report the present content of a file, which was written by this process."""
        self._used[name] = self._seen[name] = self._stamps()[name]

    def _stamps(self) -> dict[str, object]:
        stamps: dict[str, object] = {}
        for name, path in self.paths.items():
            try:
                status = path.stat()
                stamps[name] = status.st_mtime_ns, status.st_size, status.st_ino
            except OSError:
                stamps[name] = None
        return stamps


def is_later(later: Fleet, current: Fleet) -> bool:
    """Whether a genuine roster is newer than the known one; a NodeError if it is older, or the number is taken."""
    if later.serial < current.serial:
        raise NodeError(f"roster {later.serial} is refused: it is older than {current.serial}, which is known here")
    if later.serial == current.serial:
        check_same(later, current)
    return later.serial > current.serial


class RosterGossip:
    """Thread-safe: the transport's thread receives rosters, the watch's thread asks for them."""

    def __init__(self, fleet: Fleet, verify: Verify | None, refusals: Refusals, time: TimeSource = SYSTEM_TIME) -> None:
        """Without `verify`, which needs certificates, rosters of neighbours are ignored."""
        self.verify, self.refusals = verify, refusals
        self._fleet = fleet
        self._splits: dict[int, bytes] = {}  # neighbours and the digest of their last roster that was logged
        self._lock = threading.Lock()
        self.news = time.event()  # set if there is a later one, here or at a neighbour

    @property
    def fleet(self) -> Fleet:
        """The fleet with the latest known roster."""
        with self._lock:
            return self._fleet

    def take(self, later: Fleet) -> bool:
        """Use a roster that is known to be genuine; a NodeError if it is not newer than the current one."""
        with self._lock:
            taken = is_later(later, self._fleet)
            if taken:
                self._fleet = later
                self.news.set()
        return taken

    def accept_signed(self, data: bytes) -> bool:
        """Accept a signed roster from any source, if it is newer; a NodeError says why not."""
        if self.verify is None:
            raise NodeError("a roster is refused: without certificates it is only taken from the fleet file")
        return self.take(read_signed(data, self.fleet, self.verify))

    def receive(self, neighbour: int, data: bytes, refused: str) -> RosterMessage | None:
        """Read a neighbour's message, take its roster, and log once if it has another one with the same number.

        Number 0 is neither signed nor shared. `refused`: how the log line of a malformed message begins.
        """
        try:
            theirs = decode_roster_message(data)
        except WireError as error:
            self.refusals.note(neighbour, error.why, f"agent {neighbour} {refused}: {error}")
            return None
        fleet, logged = self.fleet, self._splits.get(neighbour)
        try:
            if theirs.roster:
                self.accept_signed(theirs.roster)
            elif theirs.serial == fleet.serial > 0 and theirs.digest not in (digest_of(fleet), logged):
                self._splits[neighbour] = theirs.digest
                raise NodeError(_split(fleet, theirs.digest))
        except NodeError as error:
            self.refusals.note(neighbour, "roster", f"agent {neighbour}: {error}")
        return theirs

    def __call__(self, asker: int, request: bytes, reply: Reply) -> None:
        """Answer a neighbour."""
        theirs = self.receive(asker, request, "was refused")
        if theirs is None:
            return
        fleet, asks = self.fleet, not theirs.roster
        if asks and theirs.serial > fleet.serial:
            self.news.set()
        later = signed_roster(fleet) if asks and fleet.serial > theirs.serial else b""
        reply(RosterMessage(fleet.serial, digest_of(fleet), later).encode())

    def compare(self, transport: Transport, neighbours: frozenset[int]) -> None:
        """Ask neighbours for their number, take a newer roster, and send this one if theirs is older."""
        if self.verify is None:
            return
        question = RosterMessage(self.fleet.serial, digest_of(self.fleet)).encode()
        answers = transport.ask(dict.fromkeys(neighbours, question), ANSWER_SECONDS)
        received = {j: self.receive(j, data, "sent a bad answer") for j, data in answers.items()}
        fleet = self.fleet
        earlier = [j for j, theirs in received.items() if theirs and not theirs.roster and theirs.serial < fleet.serial]
        roster = signed_roster(fleet)
        if earlier and roster:
            transport.ask(dict.fromkeys(earlier, RosterMessage(roster=roster).encode()), ANSWER_SECONDS)


def check_same(other: Fleet, current: Fleet) -> None:
    """Two signed rosters with the same number, of which each agent may have heard of either, split a fleet."""
    if encode_roster(other) != encode_roster(current):
        raise NodeError(_split(current, digest_of(other)))


def _split(current: Fleet, other: bytes) -> str:
    number, here = current.serial, digest_of(current).hex()
    return (
        f"there are two rosters {number}: {here}, which is used here, and {other.hex()}, which is refused; "
        "`peermask fleet sign` the right file, which makes a later one, and push it"
    )


def check_signed(fleet: Fleet, verify: Verify) -> None:
    """Check that the roster of a fleet file is signed by the authority, if it ever changed or names authorities."""
    if (fleet.serial or fleet.authorities) and not verify(encode_roster(fleet), fleet.signature or ""):
        raise NodeError(
            f"roster {fleet.serial} of the fleet file is not signed by ca.pem; if it was changed by hand, run "
            "`peermask fleet sign FLEET` where ca.key is, and copy the file again"
        )


def latest(fleet: Fleet, verify: Verify, roster_file: Path, say: Callable[[str], None]) -> Fleet:
    """The fleet with the later of two rosters: that of its file, and the one the agent had when it stopped."""
    saved = fleet
    try:
        if roster_file.is_file():
            saved = read_signed(roster_file.read_bytes(), fleet, verify)
    except (NodeError, OSError) as error:
        say(Line(f"{roster_file} is not used: {error}", "roster", "warning"))
    if saved.serial > fleet.serial:  # of the file, the signature may be of an authority that was retired
        say(f"using roster {saved.serial}, received from neighbours; the fleet file has {fleet.serial}")
        return saved
    check_signed(fleet, verify)
    if saved.serial == fleet.serial and encode_roster(saved) != encode_roster(fleet):
        say(Line(_split(fleet, digest_of(saved)), "roster", "warning"))
    return fleet


def save_roster(fleet: Fleet, roster_file: Path) -> None:
    """Save the roster, so that a restarted agent does not use an earlier one."""
    roster = signed_roster(fleet)
    if roster:
        write_atomically(roster_file, roster)


def was_used(fleet: Fleet, roster_file: Path) -> bool:
    """Whether this agent has used the roster before."""
    try:
        return roster_file.read_bytes() == signed_roster(fleet)
    except OSError:
        return False
