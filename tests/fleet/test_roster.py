"""Rosters: one canonical form, signed and numbered; changes of a fleet, and one line for each that cannot be."""

from __future__ import annotations

import json

import pytest
import torch
from fleet_cases import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_network import MemoryNetwork
from pulling_peers import CARD, Peer, moved_network

from peermask.errors import DataError, NodeError
from peermask.fleet.admission import Refusals
from peermask.fleet.authority import open_authority, sign, verifier
from peermask.fleet.certificates import make_certificates
from peermask.fleet.fleet import FleetMember, load_fleet, new_fleet, save_fleet, write_fleet
from peermask.fleet.messages import ROSTER, RosterMessage, decode_roster_message
from peermask.fleet.responder import Responder
from peermask.fleet.roster import (
    LARGEST_BYTES,
    add_agent,
    agents_without_neighbours,
    build_member,
    by_roster,
    digest_of,
    encode_roster,
    link_agents,
    next_roster,
    read_signed,
    remove_agents,
    revoke_certificates,
    signed_roster,
    unlink_agents,
)
from peermask.fleet.roster_gossip import FileWatch, RosterGossip, is_later, latest, save_roster, was_used
from peermask.run.build import build

FLEET = new_fleet(tiny())  # a ring of four


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs")
    make_certificates(FLEET, folder)
    return folder


def with_signature(fleet, certs):
    return fleet.model_copy(update={"signature": sign(certs, encode_roster(fleet))})


def test_the_canonical_form_is_this():
    fleet = remove_agents(add_agent(FLEET, "h", 1, [2], 0.5), [0])
    agents = [
        {"address": "127.0.0.1:7451", "agent": 1},
        {"address": "127.0.0.1:7452", "agent": 2},
        {"address": "127.0.0.1:7453", "agent": 3},
        {"address": "h:1", "agent": 4, "retention": 0.5},
    ]
    links = [[1, 2], [2, 3], [2, 4]]
    expected = {"agents": agents, "left": [0], "links": links, "run": FLEET.run, "serial": 2}
    assert encode_roster(fleet) == json.dumps(expected, separators=(",", ":")).encode()


def test_an_added_agent_may_be_relayed():
    """The relay and neighbours must know, so it is part of what is signed."""
    fleet = add_agent(FLEET.model_copy(update={"relay": "relay:1"}), "h", 1, [2], 0.5, relayed=True)
    assert fleet.member(4).relayed
    assert {"address": "h:1", "agent": 4, "relayed": True, "retention": 0.5} in json.loads(encode_roster(fleet))[
        "agents"
    ]


hosts = st.from_regex(r"\A[a-z][a-z0-9]{0,8}\Z")
change = st.one_of(
    st.tuples(st.just("add"), hosts, st.integers(0, 9), st.floats(0.01, 1)),
    st.tuples(st.sampled_from(["remove", "revoke"]), st.integers(0, 9)),
    st.tuples(st.sampled_from(["link", "unlink"]), st.integers(0, 9), st.integers(0, 9)),
)


def made(fleet, what, *values):
    match what:
        case "add":
            return add_agent(fleet, values[0], None, [values[1]], values[2])
        case "remove" | "revoke":
            return (remove_agents if what == "remove" else revoke_certificates)(fleet, values[:1])
    return (link_agents if what == "link" else unlink_agents)(fleet, *values)


@settings(max_examples=60, deadline=None)
@given(changes=st.lists(change, max_size=12))
def test_whatever_changes_the_roster_reads_back_the_same_under_a_higher_serial(changes, certs, tmp_path_factory):
    fleet = FLEET
    for one in changes:
        try:
            later = made(fleet, *one)
        except NodeError:
            continue
        assert later.serial == fleet.serial + 1
        assert set(later.left) >= set(fleet.left)  # who has left does not come back
        fleet = later
    if not fleet.serial:
        return
    fleet = with_signature(fleet, certs)
    verify = verifier(certs / "ca.pem")
    back = read_signed(signed_roster(fleet), FLEET, verify)
    assert encode_roster(back) == encode_roster(fleet)
    shuffled = back.model_copy(update={"agents": back.agents[::-1], "links": tuple(link[::-1] for link in back.links)})
    assert encode_roster(shuffled) == encode_roster(fleet)  # it follows from what it says
    path = tmp_path_factory.mktemp("file") / "fleet.toml"
    save_fleet(path, fleet)
    assert verify(encode_roster(load_fleet(path)), load_fleet(path).signature)


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_one_flipped_bit_anywhere_is_a_forgery(place, bit, certs):
    data = bytearray(signed_roster(with_signature(revoke_certificates(FLEET, [2]), certs)))
    data[place % len(data)] ^= 1 << bit
    try:
        back = read_signed(bytes(data), FLEET, verifier(certs / "ca.pem"))
    except NodeError:
        return
    assert encode_roster(back) == encode_roster(
        revoke_certificates(FLEET, [2])
    )  # only letters of the signature may change their case


def test_a_roster_that_is_forged_too_long_or_of_another_fleet_is_refused(certs, tmp_path):
    verify = verifier(certs / "ca.pem")
    good = with_signature(revoke_certificates(FLEET, [2]), certs)
    other = new_fleet(tiny())
    open_authority(tmp_path)
    cases = {
        "is not signed by this fleet's authority": signed_roster(with_signature(good, tmp_path)),
        "bytes is refused; allowed": b"x" * (LARGEST_BYTES + 1),
        "is refused; this is fleet": signed_roster(with_signature(revoke_certificates(other, [2]), certs)),
        "this version cannot read it": f"{sign(certs, b'[]')}\n[]".encode(),
    }
    for line, data in cases.items():
        with pytest.raises(NodeError, match=line) as refused:
            read_signed(data, FLEET, verify)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: add_agent(FLEET, "127.0.0.1", 7451), "agents 1 and 4 have the same address 127.0.0.1:7451"),
        (lambda: add_agent(FLEET, "a b"), "is not host:port"),
        (lambda: add_agent(FLEET, "10.0.0.1:77"), r"address '\[10.0.0.1:77\]:\d+' is not host:port"),
        (lambda: add_agent(FLEET, "h", relayed=True), "agent 4 is relayed, and there is no relay"),
        (lambda: add_agent(FLEET, "h", links=[9]), "agent 9 does not exist; this fleet has agents 0 to 3"),
        (lambda: link_agents(FLEET, 1, 1), "agent 1 is linked to itself"),
        (lambda: link_agents(FLEET, 0, 1), "agents 0 and 1 are linked already"),
        (lambda: link_agents(FLEET, 0, 7), "agent 7 does not exist"),
        (lambda: unlink_agents(FLEET, 0, 2), "agents 0 and 2 are not linked"),
        (lambda: remove_agents(FLEET, [9]), "agent 9 does not exist"),
        (lambda: remove_agents(remove_agents(FLEET, [3]), [3]), "agent 3 has left this fleet permanently"),
        (lambda: remove_agents(FLEET, [0, 1, 2, 3]), "agents: all are missing"),
        (
            lambda: revoke_certificates(remove_agents(FLEET, [3]), [7]),
            "agent 7 does not exist; this fleet has agents 0 to 3, without 3",
        ),
        (
            lambda: add_agent(new_fleet(tiny(algorithm={"name": "fl"})), "h"),
            "in fl every agent receives from every other",
        ),
        (lambda: add_agent(new_fleet(tiny(retention=[0.1, 0.2, 0.3, 0.4])), "h"), "give one for the new agent"),
        (
            lambda: add_agent(new_fleet(tiny(algorithm={"name": "accord"})), "h", retention=0.2),
            "is below 0.3, at which",
        ),
    ],
)
def test_changes_that_cannot_be_are_one_line(make, line):
    with pytest.raises(NodeError, match=line) as refused:
        make()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"agents": (*FLEET.agents, FLEET.agents[1])}, "agent 1 is there more than once, or has left"),
        ({"agents": FLEET.agents[1:]}, r"agents: \[0\] are missing"),
        ({"agents": (*FLEET.agents, FleetMember(agent=4, address="h:1"))}, "retention of agent 4 must be given"),
        ({"links": ((0, 1), (1, 0))}, "links: 1 - 0 appears twice"),
        ({"links": ((0, 8),)}, "links: 0 - 8 is a link of agent 8, which this fleet does not have"),
    ],
)
def test_a_file_changed_by_hand_is_checked_before_it_is_signed(keys, line):
    with pytest.raises(NodeError, match=line):
        next_roster(FLEET, **keys)


def test_a_new_agent_gets_a_port_links_and_a_number_of_its_own():
    fleet = add_agent(add_agent(FLEET, "127.0.0.1"), "elsewhere")
    assert [(one.agent, one.address) for one in fleet.agents[4:]] == [(4, "127.0.0.1:7454"), (5, "elsewhere:7450")]
    assert fleet.neighbours(4) == (0, 1)  # who had the fewest, and the lowest numbers
    assert fleet.neighbours(5) == (2, 3)
    assert add_agent(remove_agents(fleet, [5]), "again").agents[-1].agent == 6
    assert agents_without_neighbours(remove_agents(FLEET, [1, 3])) == [0, 2]


def test_an_experiment_by_its_roster():
    fleet = unlink_agents(add_agent(new_fleet(tiny(agents=4, retention=0.5)), "h", links=[0, 2], retention=0.25), 0, 1)
    experiment = by_roster(build(fleet.experiment), fleet)
    assert experiment.retentions == (0.5, 0.5, 0.5, 0.5, 0.25)
    assert experiment.mixing.links.lists == [[3, 4], [2], [1, 3, 4], [0, 2], [0, 2]]
    assert by_roster(build(tiny()), FLEET).mixing.links.lists == [[1, 3], [0, 2], [1, 3], [0, 2]]
    joined = build_member(fleet, 4)
    assert joined.config.hash == fleet.experiment.hash
    assert joined.frozen.checksum == experiment.frozen.checksum
    assert len(joined.samples[4].train) > 0
    assert torch.equal(joined.agents.keep, experiment.agents.keep)
    listed = fleet.experiment.model_copy(
        update={"partition": tiny(partition={"name": "labels", "labels_per_agent": [2] * 4}).partition}
    )
    with pytest.raises(DataError, match="4 numbers for 5 agents"):
        build_member(fleet.model_copy(update={"experiment": listed}), 4)


class Holder:
    """A peer that goes by a roster."""

    def __init__(self, network, fleet, agent, verify):
        self.lines = []
        self.responder = Responder(agent, fleet.neighbours(agent), CARD, self.lines.append)
        self.rosters = self.responder.rosters = RosterGossip(fleet, verify, Refusals(self.lines.append))
        self.transport = network.join(agent, self.responder)

    def compare(self):
        self.rosters.compare(self.transport, self.transport.alive())

    @property
    def serial(self):
        return self.rosters.fleet.serial


def test_a_roster_goes_from_neighbour_to_neighbour_whoever_asks(certs):
    network, verify = MemoryNetwork(FLEET.links), verifier(certs / "ca.pem")
    zero, one, two = (Holder(network, FLEET, agent, verify) for agent in (0, 1, 2))
    zero.rosters.take(with_signature(revoke_certificates(FLEET, [3]), certs))
    zero.compare()  # who knows more hands it on
    assert (zero.serial, one.serial, two.serial) == (1, 1, 0)
    two.compare()  # who knows less is given it
    assert two.serial == 1
    assert one.lines == two.lines == []


def test_neighbours_that_lie_about_rosters_change_nothing(certs, tmp_path):
    network, verify = MemoryNetwork(FLEET.links), verifier(certs / "ca.pem")
    later = with_signature(revoke_certificates(revoke_certificates(FLEET, [3]), [3]), certs)
    one = Holder(network, later, 1, verify)
    open_authority(tmp_path)
    forged = with_signature(later.model_copy(update={"serial": 9}), tmp_path)
    same = with_signature(revoke_certificates(link_agents(FLEET, 0, 2), [3]), certs)  # another one of that number
    older = with_signature(revoke_certificates(FLEET, [3]), certs)
    answers = []
    for sent in (forged, older, same):
        one.responder(0, RosterMessage(roster=signed_roster(sent)).encode(), answers.append)
    one.responder(0, b"S123", answers.append)
    assert one.serial == 2
    assert [line.partition(": ")[2] for line in one.lines] == [
        "a roster is refused: it is not signed by this fleet's authority",
        "roster 1 is refused: it is older than 2, which is known here",
        (
            f"there are two rosters 2: {digest_of(later).hex()}, which is used here, and {digest_of(same).hex()}, "
            "which is refused; `peermask fleet sign` the right file, which makes a later one, and push it"
        ),
        "message of 4 bytes has no roster number",
    ]
    assert one.rosters.refusals.counts() == {0: {"damaged": 1, "roster": 3}}
    assert [decode_roster_message(answer) for answer in answers] == [RosterMessage(2, digest_of(later))] * 3

    liar = Peer(network, 0, (1,))
    liar.responder.rosters = lambda _asker, _request, reply: reply(ROSTER + b"00\n{}")
    one.compare()
    assert one.serial == 2
    insecure = Holder(MemoryNetwork([]), FLEET, 2, None)
    insecure.responder(1, RosterMessage(roster=signed_roster(older)).encode(), answers.append)
    assert (insecure.serial, "only taken from the fleet file" in insecure.lines[0]) == (0, True)


def test_a_new_agent_gets_a_port_of_this_fleet_and_ipv6_needs_no_brackets():
    fleet = new_fleet(tiny(), ["10.0.0.1"], port=7600)
    assert add_agent(fleet, "10.0.0.1").agents[-1].address == "10.0.0.1:7604"
    assert add_agent(fleet, "10.0.0.2").agents[-1].address == "10.0.0.2:7600"
    for host in ("::1", "[::1]"):
        fleet = new_fleet(tiny(), [host])
        assert [member.address for member in fleet.agents[:2]] == ["[::1]:7450", "[::1]:7451"]
        assert add_agent(fleet, host).agents[-1].address == "[::1]:7454"
        assert fleet.member(0).host == "::1"


def test_two_rosters_of_one_number_are_named_on_both_sides_and_a_later_one_ends_it(certs):
    network, verify = MemoryNetwork(FLEET.links), verifier(certs / "ca.pem")
    one, two = (Holder(network, FLEET, agent, verify) for agent in (1, 2))
    first, other = (
        with_signature(fleet, certs) for fleet in (revoke_certificates(FLEET, [3]), revoke_certificates(FLEET, [0]))
    )
    one.rosters.take(first)
    two.rosters.take(other)
    for _ in range(3):
        one.compare()
        two.compare()
    digests = {holder: digest_of(holder.rosters.fleet).hex() for holder in (one, two)}
    for holder, neighbour, agent in ((one, two, 2), (two, one, 1)):
        (line,) = holder.lines
        here, there = digests[holder], digests[neighbour]
        assert line.startswith(
            f"agent {agent}: there are two rosters 1: {here}, which is used here, and {there}, which"
        )
    for number in range(100):  # a liar does not fill the memory
        two.rosters.receive(1, RosterMessage(1, number.to_bytes(8)).encode(), "")
    assert len(two.rosters._splits) == 1
    said = len(two.lines)
    one.rosters.take(with_signature(revoke_certificates(first, [0]), certs))
    one.compare()
    assert (two.serial, len(two.lines)) == (2, said)


def test_an_agent_started_again_goes_by_the_later_of_two_rosters(certs, tmp_path):
    verify, lines, kept = verifier(certs / "ca.pem"), [], tmp_path / "roster"
    first, second = (
        with_signature(one, certs)
        for one in (revoke_certificates(FLEET, [3]), revoke_certificates(revoke_certificates(FLEET, [3]), [2]))
    )
    assert not was_used(second, tmp_path)  # which cannot be read
    save_roster(second, kept)
    assert was_used(second, kept)
    assert latest(first, verify, kept, lines.append).serial == 2
    retired = first.model_copy(update={"signature": "00" * 70})  # of an authority that is no longer trusted
    assert latest(retired, verify, kept, lines.append).serial == 2
    save_roster(first, kept)
    assert latest(second, verify, kept, lines.append).serial == 2
    save_roster(with_signature(revoke_certificates(FLEET, [0]), certs), kept)
    assert latest(first, verify, kept, lines.append) == first
    assert lines.pop().startswith("there are two rosters 1: ")
    kept.write_bytes(b"garbage")
    assert latest(first, verify, kept, lines.append).serial == 1
    assert len(lines) == 3
    with pytest.raises(
        NodeError, match=r"is not signed by ca.pem; if it was changed by hand, run `peermask fleet sign"
    ):
        latest(second.model_copy(update={"links": FLEET.links[1:]}), verify, kept, lines.append)


def test_files_are_read_once_they_are_the_same_in_two_checks(tmp_path):
    path, other = tmp_path / "fleet.toml", tmp_path / "ca.pem"
    path.write_text("1")
    watch = FileWatch(fleet=path, ca=other)
    assert watch.changed() == set()
    path.write_text("22")
    assert not watch.is_current("fleet")
    assert watch.changed() == set()  # it may not be copied completely yet
    assert watch.changed() == {"fleet"}
    assert watch.changed() == set()
    path.unlink()
    other.write_text("3")
    watch.ignore("ca")  # written by this process
    watch.changed()
    assert watch.changed() == {"fleet"}


def test_only_a_later_roster_is_taken(certs):
    first = with_signature(revoke_certificates(FLEET, [3]), certs)
    second = with_signature(revoke_certificates(first, [2]), certs)
    assert is_later(second, first)
    assert not is_later(first, first)
    with pytest.raises(NodeError, match="roster 1 is refused: it is older than 2"):
        is_later(first, second)
    with pytest.raises(NodeError, match="there are two rosters 2: "):
        is_later(with_signature(revoke_certificates(first, [1]), certs), second)


def test_a_fleet_that_never_changed_is_written_as_before(tmp_path):
    save_fleet(tmp_path / "fleet.toml", FLEET)
    text = (tmp_path / "fleet.toml").read_text()
    assert not any(word in text for word in ("serial", "left", "signature"))
    assert signed_roster(FLEET) == b""
    write_fleet(tmp_path / "fleet.toml", revoke_certificates(FLEET, [1]))
    assert "serial = 1" in (tmp_path / "fleet.toml").read_text()


def test_who_has_left_is_not_waited_for_nor_answered_and_its_mask_is_forgotten():
    network = moved_network((0, 1), (0, 2))
    asker, gone, stays = (
        Peer(network, 0, (1, 2), missing="wait", deadline=20),
        Peer(network, 1, (0,)),
        Peer(network, 2, (0,)),
    )
    for peer in (gone, stays):
        peer.publish(1)
    assert set(asker.pull(1).payloads) == {1, 2}
    stays.publish(2)
    asker.responder.follow((2,))
    heard = asker.pull(2)  # at once, although 1 is there and says nothing
    assert (set(heard.payloads), heard.absent) == ({2}, [])
    asker.puller.follow((2,))
    assert asker.puller.inbox.newest_round(1) is None
    assert gone.transport.ask({0: gone.responder.greeting().encode()}, 0.1) == {}


def test_one_who_was_added_is_waited_for_from_when_it_first_appears():
    network = moved_network((0, 1), (0, 2))
    asker, other = Peer(network, 0, (1,), missing="wait", deadline=20), Peer(network, 1, (0,))
    asker.around.founders = 2
    other.publish(1, 2, 3)
    asker.pull(1)
    asker.responder.follow((1, 2))
    asker.puller.follow((1, 2))
    heard = asker.pull(2)
    assert (set(heard.payloads), heard.absent) == ({1}, [])
    new = Peer(network, 2, (0,))
    new.around.gather(1)
    new.publish(3)
    assert set(asker.pull(3).payloads) == {1, 2}


def test_one_that_joins_takes_the_lower_median_of_its_neighbours_rounds():
    network = moved_network((0, 3), (1, 3), (2, 3))
    peers = [Peer(network, agent, (3,)) for agent in range(3)]
    new = Peer(network, 3, (0, 1, 2))
    for peer, number in zip(peers, (7, 9, 4_000_000), strict=True):
        peer.publish(number)
    new.around.gather(1)
    assert new.around.common_round(joining=True) == 9
    new.around.newest.pop(1)
    assert new.around.common_round(joining=True) == 7  # of two the lower: one alone moves nobody ahead
