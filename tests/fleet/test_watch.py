"""The thread that watches an agent's fleet file, certificate, neighbours and links, on a network in memory."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from datetime import timedelta

import pytest
from fleet_cases import tiny_fleet, written
from memory_network import MemoryNetwork, MemoryTransport
from moved_time import MovedTime
from pulling_peers import CARD

from peermask.fleet.admission import Refusals
from peermask.fleet.authority import sign, verifier
from peermask.fleet.certificates import make_certificates
from peermask.fleet.credentials import Credentials
from peermask.fleet.environment import ReconnectingTransport
from peermask.fleet.fleet import load_fleet, write_fleet
from peermask.fleet.responder import Responder
from peermask.fleet.roster import encode_roster, link_agents, read_signed, remove_agents, revoke_certificates
from peermask.fleet.roster_gossip import RosterGossip
from peermask.fleet.watch import Watch


class StaleAtTimes(MemoryTransport):
    def __init__(self, device):
        device.network.join(1, device.responder)
        super().__init__(device.network, 1)
        self.device = device

    def stale_links(self):
        return frozenset(self.device.stale)


class Device:
    """Agent 1 of a ring of four, without its rounds."""

    def __init__(self, folder):
        self.certs = folder / "certs"
        self.fleet = tiny_fleet()
        self.path = written(folder, self.fleet)
        make_certificates(self.fleet, self.certs)
        self.verify, self.roster_file = verifier(self.certs / "ca.pem"), folder / "roster"
        self.lines, self.opened, self.adopted, self.stale = [], [], [], set()
        self.time = time = MovedTime()
        self.network = MemoryNetwork(self.fleet.links, time)
        self.responder = Responder(1, self.fleet.neighbours(1), CARD, self.lines.append, time=time)
        self.rosters = RosterGossip(self.fleet, self.verify, Refusals(self.lines.append), time)
        self.transport = ReconnectingTransport(time)
        self.watch = Watch(
            self.path, 1, Credentials.of(self.certs, 1), self.rosters, self.responder, self.transport, self.session,
            lambda fleet, others: self.adopted.append((fleet.serial, others)), self.roster_file, time,
        )  # fmt: skip

    @contextmanager
    def session(self, fleet, _credentials):
        self.opened.append(fleet.serial)
        yield StaleAtTimes(self)

    def signed(self, fleet):
        return fleet.model_copy(update={"signature": sign(self.certs, encode_roster(fleet))})

    def neighbour(self, agent):
        rosters = RosterGossip(self.fleet, self.verify, Refusals(self.lines.append), self.time)
        responder = Responder(agent, self.fleet.neighbours(agent), CARD, self.lines.append, time=self.time)
        responder.rosters = rosters
        self.network.join(agent, responder)
        return rosters


def test_a_changed_fleet_file_is_followed_kept_and_handed_on(tmp_path):
    device = Device(tmp_path)
    zero = device.neighbour(0)
    later = device.signed(link_agents(device.fleet, 1, 3))
    with device.watch:
        write_fleet(device.path, later)
        device.time.until(lambda: device.adopted and zero.fleet.serial == 1)
        assert device.responder.neighbours == {0, 2, 3}
        assert device.adopted == [(1, frozenset())]
        device.time.until(lambda: device.opened == [0, 1])
        assert not device.watch.is_over
    assert read_signed(device.roster_file.read_bytes(), device.fleet, device.verify) == later
    assert device.lines == []


def test_a_roster_of_a_neighbour_drops_what_a_revoked_agent_sent(tmp_path):
    device = Device(tmp_path)
    zero = device.neighbour(0)
    device.path.chmod(0o640)
    with device.watch:
        zero.take(device.signed(revoke_certificates(device.fleet, [2])))
        device.time.until(lambda: device.adopted)
        assert device.adopted == [(1, {2})]
        assert load_fleet(device.path) == zero.fleet  # so that `fleet status` here asks the agents of today
        assert device.path.stat().st_mode & 0o777 == 0o640
        device.time.until(lambda: device.opened == [0, 1])  # a session that admits only its new certificate
        assert device.responder.neighbours == {0, 2}


def test_an_agent_that_was_removed_stops_and_answers_nobody(tmp_path):
    device = Device(tmp_path)
    zero = device.neighbour(0)
    with device.watch:
        write_fleet(device.path, device.signed(remove_agents(device.fleet, [1])))
        device.time.until(lambda: device.watch.is_over)
        device.time.until(lambda: zero.fleet.serial == 1)
        assert (device.watch.left, device.responder.neighbours, device.adopted) == (True, frozenset(), [])


def test_a_file_that_is_not_signed_or_not_whole_is_named_once_and_not_used(tmp_path):
    device = Device(tmp_path)
    with device.watch:
        write_fleet(device.path, link_agents(device.fleet, 1, 3))
        device.time.until(lambda: device.lines)
        device.path.write_text("links = [[0,")
        device.time.until(lambda: len(device.lines) > 1)
        device.time.sleep(10)
    assert [line.partition(" has changed and is not used: ")[2][:20] for line in device.lines] == [
        "its roster is not si",
        "Invalid value (at en",
    ]
    assert (device.adopted, device.opened) == ([], [0])


def test_a_new_certificate_is_used_and_another_agents_is_not(tmp_path):
    device = Device(tmp_path)
    files = Credentials.of(device.certs, 1)
    with device.watch:
        make_certificates(device.fleet, device.certs, 30, renew=(1,))
        device.time.until(lambda: device.opened == [0, 0])
        assert device.lines[-1].startswith("has a new certificate, which expires ")
        files.certificate.write_bytes(Credentials.of(device.certs, 2).certificate.read_bytes())
        device.time.until(lambda: len(device.lines) > 1)
        assert "is of agent-2, not of agent 1" in device.lines[-1]
        assert device.lines[-1].endswith("; until then the certificate in use stays")
        assert device.opened == [0, 0]


def test_a_damaged_key_is_named_and_the_certificate_in_use_stays(tmp_path):
    device = Device(tmp_path)
    key = Credentials.of(device.certs, 1).key
    whole = key.read_bytes()
    with device.watch:
        key.write_bytes(flipped_oid(whole))
        device.time.until(lambda: device.lines)
        (line,) = device.lines
        assert line.endswith("or is damaged; copy it again; until then the certificate in use stays")
        key.write_bytes(whole)
        device.time.until(lambda: device.opened == [0, 0])
        assert not device.watch.is_over
        (device.certs / "ca.pem").touch()
        device.time.until(lambda: device.opened == [0, 0, 0])
    assert device.lines == [line]


def flipped_oid(pem):
    """A key of an algorithm that does not exist: one bit of its object identifier is flipped."""
    first, *lines, last = pem.decode().strip().splitlines()
    content = bytearray(base64.b64decode("".join(lines)))
    content[content.index(bytes.fromhex("2a8648ce3d0201")) + 6] ^= 2
    return f"{first}\n{base64.b64encode(content).decode()}\n{last}\n".encode()


def test_the_end_of_a_certificate_is_announced_once_a_day_and_ends_the_agent(tmp_path):
    device = Device(tmp_path)
    with device.watch:
        begin, end = device.watch.valid
        device.time.sleep(10)
        assert device.lines == []
        device.watch.valid = begin - timedelta(days=60), end - timedelta(days=360)  # in five days
        device.time.until(lambda: device.lines)
        device.time.sleep(10)
        (line,) = device.lines
        assert line.startswith("its certificate expires ")
        assert "run `peermask fleet renew FLEET 1` before" in line
        assert not device.watch.is_over
        device.watch.valid = begin, end - timedelta(days=366)
        assert device.watch.is_over


def test_a_session_with_a_stale_link_is_replaced_now_and_then(tmp_path):
    device = Device(tmp_path)
    with device.watch:
        device.stale = {2}
        device.time.until(lambda: len(device.opened) >= 3)
        device.stale = set()
    assert device.lines[0] == "reopened its session: the link to agent 2 was stale"


def test_an_error_of_the_thread_stops_the_agent_and_is_raised(tmp_path):
    device = Device(tmp_path)
    device.stale = None  # which no transport gives

    def entered():
        with device.watch:
            device.time.until(lambda: device.watch.is_over)

    with pytest.raises(TypeError):
        entered()


def test_a_roster_that_cannot_be_saved_is_used_nevertheless(tmp_path):
    """On a full disk, an agent that was revoked is not served for that."""
    device = Device(tmp_path)
    zero = device.neighbour(0)
    with device.watch:
        device.watch.roster_file = tmp_path / "none" / "roster"
        zero.take(device.signed(revoke_certificates(device.fleet, [2])))
        device.time.until(lambda: device.adopted)
        assert device.adopted == [(1, {2})]
    (line,) = device.lines
    assert line.startswith(f"cannot write {tmp_path / 'none' / 'roster'}")
