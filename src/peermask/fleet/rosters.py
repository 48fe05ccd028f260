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
from peermask.fleet.fleet import Fleet
from peermask.fleet.log import Line
from peermask.fleet.messages import RosterMessage, decode_roster_message
from peermask.fleet.roster import Verify, digest_of, encode_roster, read_signed, signed_roster
from peermask.fleet.time_source import SYSTEM_TIME, TimeSource
from peermask.fleet.transport import Reply, Transport

PATIENCE = 1.0  # seconds a neighbour has to answer


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
        found: dict[str, object] = {}
        for name, path in self.paths.items():
            try:
                status = path.stat()
                found[name] = status.st_mtime_ns, status.st_size, status.st_ino
            except OSError:
                found[name] = None
        return found


def is_later(later: Fleet, known: Fleet) -> bool:
    """Whether a genuine roster is newer than the known one; a NodeError if it is older, or the number is taken."""
    if later.serial < known.serial:
        raise NodeError(f"roster {later.serial} is refused: it is older than {known.serial}, which is known here")
    if later.serial == known.serial:
        check_same(later, known)
    return later.serial > known.serial


class Rosters:
    """Thread-safe: the transport's thread receives rosters, the watch's thread asks for them."""

    def __init__(self, fleet: Fleet, verify: Verify | None, refusals: Refusals, time: TimeSource = SYSTEM_TIME) -> None:
        """Without `verify`, which needs certificates, rosters of neighbours are ignored."""
        self.verify, self.refusals = verify, refusals
        self._fleet = fleet
        self._splits: set[tuple[int, bytes]] = set()  # neighbours and their rosters that were logged
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

    def hand_in(self, data: bytes) -> bool:
        """Accept a signed roster from any source, if it is newer; a NodeError says why not."""
        if self.verify is None:
            raise NodeError("a roster is refused: without certificates it is only taken from the fleet file")
        return self.take(read_signed(data, self.fleet, self.verify))

    def offered(self, data: bytes, giver: int) -> None:
        """A roster from a neighbour."""
        try:
            self.hand_in(data)
        except NodeError as error:
            self.refusals.note(giver, "roster", f"agent {giver}: {error}")

    def _compare_digests(self, neighbour: int, theirs: RosterMessage, own: Fleet) -> None:
        """Log once that a neighbour has another roster with the same number. Number 0 is not signed nor shared."""
        differs = theirs.serial == own.serial > 0 and not theirs.roster and theirs.digest != digest_of(own)
        with self._lock:
            known = (neighbour, theirs.digest) in self._splits
            if differs:
                self._splits.add((neighbour, theirs.digest))
        if differs and not known:
            self.refusals.note(neighbour, "roster", f"agent {neighbour}: {_split(own, theirs.digest)}")

    def __call__(self, asker: int, request: bytes, reply: Reply) -> None:
        """Answer a neighbour."""
        try:
            theirs = decode_roster_message(request)
        except WireError as error:
            self.refusals.note(asker, error.why, f"agent {asker} was refused: {error}")
            return
        if theirs.roster:
            self.offered(theirs.roster, asker)
        own = self.fleet
        if not theirs.roster and theirs.serial > own.serial:
            self.news.set()
        later = own.serial > theirs.serial and not theirs.roster
        self._compare_digests(asker, theirs, own)
        reply(RosterMessage(own.serial, digest_of(own), signed_roster(own) if later else b"").encode())

    def compare(self, transport: Transport, neighbours: frozenset[int]) -> None:
        """Ask neighbours for their number, take a newer roster, and send this one if theirs is older."""
        if self.verify is None:
            return
        earlier = []
        own = self.fleet
        question = RosterMessage(own.serial, digest_of(own)).encode()
        for j, data in transport.ask(dict.fromkeys(neighbours, question), PATIENCE).items():
            try:
                theirs = decode_roster_message(data)
            except WireError as error:
                self.refusals.note(j, error.why, f"agent {j} sent a bad answer: {error}")
                continue
            if theirs.roster:
                self.offered(theirs.roster, j)
            self._compare_digests(j, theirs, own)
            if not theirs.roster and theirs.serial < self.fleet.serial:
                earlier.append(j)
        roster = signed_roster(self.fleet)
        if earlier and roster:
            transport.ask(dict.fromkeys(earlier, RosterMessage(roster=roster).encode()), PATIENCE)


def check_same(other: Fleet, known: Fleet) -> None:
    """Two signed rosters with the same number, of which each agent may have heard of either, split a fleet."""
    if encode_roster(other) != encode_roster(known):
        raise NodeError(_split(known, digest_of(other)))


def _split(known: Fleet, other: bytes) -> str:
    number, here = known.serial, digest_of(known).hex()
    return (
        f"there are two rosters {number}: {here}, which is used here, and {other.hex()}, which is refused; "
        "`peermask fleet sign` the right file, which makes a later one, and push it"
    )


def check_signed(fleet: Fleet, verify: Verify) -> None:
    """Check that the roster of a fleet file is signed by the authority, if it ever changed."""
    if fleet.serial and not verify(encode_roster(fleet), fleet.signature or ""):
        raise NodeError(
            f"roster {fleet.serial} of the fleet file is not signed by ca.pem; if it was changed by hand, run "
            "`peermask fleet sign FLEET` where ca.key is, and copy the file again"
        )


def latest(fleet: Fleet, verify: Verify, kept: Path, say: Callable[[str], None]) -> Fleet:
    """The fleet with the later of two rosters: that of its file, and the one the agent had when it stopped."""
    check_signed(fleet, verify)
    if not kept.is_file():
        return fleet
    try:
        known = read_signed(kept.read_bytes(), fleet, verify)
    except (NodeError, OSError) as error:
        say(Line(f"{kept} is not used: {error}", "roster", "warning"))
        return fleet
    if known.serial > fleet.serial:
        say(f"using roster {known.serial}, received from neighbours; the fleet file has {fleet.serial}")
        return known
    if known.serial == fleet.serial and encode_roster(known) != encode_roster(fleet):
        say(Line(_split(fleet, digest_of(known)), "roster", "warning"))
    return fleet


def keep(fleet: Fleet, kept: Path) -> None:
    """Save the roster, so that a restarted agent does not use an earlier one."""
    roster = signed_roster(fleet)
    if roster:
        write_atomically(kept, roster)


def is_kept(fleet: Fleet, kept: Path) -> bool:
    """Whether this agent has used the roster before."""
    return kept.is_file() and kept.read_bytes() == signed_roster(fleet)
