"""Asking and answering on a network in memory: rounds, policies and refusals."""

from __future__ import annotations

import pytest
from pulling_peers import CARD, SCHEMA, Peer, message, moved_network, pair, same

from peermask.errors import NodeError
from peermask.fleet.messages import ExperimentId
from peermask.fleet.puller import STOP_SECONDS
from peermask.run.exchange import Abandoned
from peermask.wire.mailbox import KEPT_ROUNDS


def test_a_round_is_pulled_exactly_although_the_neighbour_is_ahead():
    slow, fast = pair()
    fast.publish(1, 2, 3)
    for number in (1, 2, 3):
        heard = slow.pull(number)
        assert same(heard.payloads[1], 1, number)
        assert (heard.absent, heard.behind) == ([], None)


def test_a_question_waits_for_the_round_to_be_published():
    asker, other = pair(deadline=30)
    asker.network.time.later(0.1, other.publish, 1)
    assert same(asker.pull(1).payloads[1], 1, 1)


def test_only_changes_travel_once_a_round_is_held():
    asker, other = pair()
    other.publish(1)
    asker.pull(1)
    other.responder.publish(2, message(1, 1), SCHEMA)
    asker.pull(2)
    total, sent = other.responder.sent_bytes, other.responder.take_sent(3)
    assert sent[2].bytes < sent[1].bytes / 1.5
    assert (sent[1].frames, sent[2].frames) == (1, 1)
    assert total == other.responder.sent_bytes == sent[1].bytes + sent[2].bytes
    assert other.responder.take_sent(3) == {}  # forgotten


@pytest.mark.parametrize("missing", ["last", "skip", "wait"])
def test_a_silent_neighbour_costs_its_deadline_and_no_more(missing):
    asker, other = pair(missing=missing)
    other.publish(1)
    asker.pull(1)
    before = asker.network.time.monotonic()
    heard = asker.pull(2)
    assert asker.network.time.monotonic() == before + 0.3
    (absence,) = heard.absent
    assert (absence.round, absence.neighbour, absence.why) == (2, 1, "silent")
    if missing == "skip":
        assert (absence.used, heard.payloads) == (None, {})
    else:
        assert absence.used == 1
        assert same(heard.payloads[1], 1, 1)


@pytest.mark.parametrize("missing", ["last", "wait"])
def test_the_last_message_of_a_neighbour_that_is_gone_expires(missing):
    asker, other = pair(missing=missing)
    other.publish(1)
    asker.pull(1)
    asker.network.leave(1)
    heard = [asker.pull(number) for number in range(2, 8)]
    assert [one.absent[0].used for one in heard] == [1, 1, 1, 1, None, None]
    assert [list(one.payloads) for one in heard] == [[1]] * 4 + [[]] * 2


def test_a_neighbour_behind_gives_what_it_has_when_the_time_is_over():
    asker, slow = pair()
    slow.publish(1, 2)
    heard = asker.pull(5)
    assert same(heard.payloads[1], 1, 2)
    assert (heard.absent[0].used, heard.behind) == (2, None)


@pytest.mark.parametrize("missing", ["last", "wait"])
def test_who_does_not_say_a_word_uses_up_one_limit_and_not_one_a_round(missing):
    network = moved_network((0, 1))
    asker = Peer(network, 0, (1,), missing=missing)
    questions = []
    network.join(1, lambda *question: questions.append(question))
    assert asker.pull(1).absent[0].why == "silent"
    asked = len(questions)
    assert asker.pull(2).absent[0].why == "silent"
    assert len(questions) == asked
    back = Peer(network, 1, (0,))
    back.publish(3)
    back.around.gather(1)
    back.pull(3)  # it asks, so it is there
    assert asker.pull(3).absent == []


def test_two_who_take_each_other_for_mute_meet_again():
    """A cut that ended before the links did: nobody came back, and neither asks."""
    peers = pair(deadline=0.02)
    network = peers[0].network
    network.silent |= {0, 1}
    for peer in peers:
        peer.publish(1)
        assert peer.pull(1).absent[0].why == "silent"
    network.silent.clear()
    numbers = iter(range(2, 1000))
    while any(peer.around.silent for peer in peers):
        number = next(numbers)
        for peer in peers:
            peer.publish(number)
        for peer in peers:
            heard = peer.pull(number)
        network.time.sleep(0.1)  # a round
    assert heard.absent == []


def test_who_was_never_heard_is_left_out():
    heard = pair()[0].pull(1)
    assert (heard.payloads, heard.absent[0].used) == ({}, None)


@pytest.mark.parametrize("missing", ["last", "skip"])
def test_who_is_gone_is_not_waited_for(missing):
    asker, _ = pair(missing=missing, deadline=3600)
    asker.network.leave(1)
    assert asker.pull(1).absent[0].why == "gone"
    assert asker.network.time.monotonic() == 1000


def test_with_wait_a_neighbour_may_come_back_within_the_limit():
    asker, _ = pair(missing="wait", deadline=30)
    asker.network.leave(1)

    def come_back():
        Peer(asker.network, 1, (0,)).publish(1)

    asker.network.time.later(0.1, come_back)
    assert same(asker.pull(1).payloads[1], 1, 1)


def test_a_round_no_longer_kept_is_answered_with_the_newest():
    asker, other = pair()
    newest = KEPT_ROUNDS + 2
    other.publish(*range(1, newest + 1))
    heard = asker.pull(2)
    assert same(heard.payloads[1], 1, newest)
    assert heard.behind == 2
    assert asker.pull(3).absent == []  # what is held is newer than what is wanted


def trio(**keys):
    network = moved_network((0, 1), (0, 2))
    return Peer(network, 0, (1, 2), **keys), Peer(network, 1, (0,), **keys), Peer(network, 2, (0,), **keys)


def test_who_is_behind_jumps_to_where_most_of_its_neighbourhood_is():
    asker, one, other = trio()
    one.publish(*range(1, 40))
    other.publish(*range(1, 42))
    heard = asker.pull(2)
    assert (heard.behind, heard.absent) == (39, [])
    assert same(heard.payloads[2], 2, 41)


def test_one_neighbour_that_ran_ahead_moves_nobody():
    asker, ahead, near = trio(deadline=30)
    ahead.publish(*range(1, 40))
    near.publish(1, 2)
    heard = asker.pull(2)
    assert heard.behind is None
    assert list(heard.payloads) == [2]
    assert [(absence.neighbour, absence.why) for absence in heard.absent] == [(1, "refused (ahead)")]


def test_who_is_far_ahead_costs_no_time_and_is_heard_once_the_others_have_caught_up():
    """Asked every round, it would send a message that is refused, until it may send no more and each takes a second."""
    asker, ahead, near = trio(deadline=30)
    ahead.publish(*range(1, 140))
    assert asker.around.gather(1) == set()
    for number in range(1, 140):
        near.publish(number)
        heard = asker.pull(number)
        assert list(heard.payloads) == ([1, 2] if number >= 139 - KEPT_ROUNDS else [2])
    assert heard.absent == []
    assert asker.network.time.monotonic() == 1000
    assert ahead.responder.sent.totals()[0] == {0: 1}  # with the rounds that follow it has what it needs
    assert asker.responder.refusals.counts() == {}


@pytest.mark.parametrize("others", [0, 1, 3])
def test_before_the_first_round_no_single_peer_moves_the_clock(others):
    """Neighbours that have published nothing count as well as one that claims to be at the end."""
    neighbours = tuple(range(1, others + 2))
    network = moved_network(*((0, j) for j in neighbours))
    asker, liar = Peer(network, 0, neighbours), Peer(network, 1, (0,))
    for j in neighbours[1:]:
        Peer(network, j, (0,))
    liar.publish(120)
    assert asker.around.gather(1) == set()
    assert asker.around.common_round() == 0


@pytest.mark.parametrize(
    ("claims", "reached"), [((7,), 7), ((7, 8), 7), ((0, 8), 3), ((0, 7, 8), 7), ((0, 0, 9), 3), ((9, 7, 8, 0), 7)]
)
def test_the_round_reached_is_the_median_of_the_neighbours(claims, reached):
    asker = pair()[0]
    asker.publish(1, 2, 3)
    asker.around.newest = dict(enumerate(claims, 1))
    assert asker.around.common_round() == reached


def test_a_neighbour_that_restarted_is_not_believed_to_remember():
    """It publishes the same rounds with other bits; a delta against the old ones would decode to nonsense."""
    asker, before = pair()
    before.publish(1)
    asker.pull(1)
    after = Peer(asker.network, 1, (0,))
    after.responder.publish(1, message(9, 1), SCHEMA)
    after.responder.publish(2, message(9, 2), SCHEMA)
    assert same(asker.pull(2).payloads[1], 9, 2)


def test_a_late_joiner_hears_and_is_heard():
    network = moved_network((0, 1))
    early = Peer(network, 0, (1,))
    early.publish(1)
    assert early.pull(1).absent[0].why == "gone"
    late = Peer(network, 1, (0,))
    assert late.around.gather(0.3) == set()
    early.publish(2)
    late.publish(2)
    assert same(early.pull(2).payloads[1], 1, 2)
    assert same(late.pull(2).payloads[0], 0, 2)


@pytest.mark.parametrize("field", ["run", "config_hash", "frozen_checksum", "data", "rules"])
def test_another_experiment_is_refused_on_both_sides(field):
    network = moved_network((0, 1))
    odd = ExperimentId(**{**CARD.__dict__, field: "odd"})
    ours, theirs = Peer(network, 0, (1,)), Peer(network, 1, (0,), card=odd)
    theirs.publish(1)
    heard = ours.pull(1)
    assert (heard.payloads, heard.absent[0].why) == ({}, "refused")
    assert len(ours.lines) == len(theirs.lines) == 1
    assert "agent 1 was refused: its" in ours.lines[0]
    assert "is 'odd', here it is" in ours.lines[0]
    assert "agent 0 was refused: its" in theirs.lines[0]
    theirs.around.gather(0.3)
    with pytest.raises(NodeError, match="no neighbour runs the same experiment"):
        theirs.around.check_not_alone()


def ending_pair():
    """Two peers in their last round, and the thread in which the first one ends."""
    a, b = pair(deadline=30)
    for peer in (a, b):
        peer.publish(1)
    a.pull(1)
    return a, b, a.network.time.start(a.puller.finish, 1)


def test_neighbours_say_goodbye_and_nobody_stays_for_nobody():
    a, b, leaving = ending_pair()
    time = a.network.time
    b.pull(1)
    time.sleep(20)
    assert leaving.is_alive()  # b may still need something
    b.puller.finish(1)
    time.join(leaving)
    assert time.monotonic() < 1030  # before the limit


def test_who_lingers_leaves_once_the_neighbour_is_gone():
    a, _, leaving = ending_pair()
    time = a.network.time
    time.sleep(20)
    assert leaving.is_alive()  # b has not got its message yet
    a.network.leave(1)
    time.join(leaving)
    assert time.monotonic() < 1030


@pytest.mark.parametrize("missing", ["last", "wait"])
def test_a_stop_cuts_the_wait_short(missing):
    asker, _ = pair(missing=missing, deadline=3600)
    asker.around.should_stop = lambda: True
    if missing == "wait":  # no round is played without everybody
        with pytest.raises(Abandoned):
            asker.pull(1)
    else:
        assert asker.pull(1).absent[0].why == "silent"
    assert asker.network.time.monotonic() == 1000 + STOP_SECONDS


@pytest.mark.parametrize(
    ("played", "ahead", "missing", "left"),
    [(3, 9, "last", True), (3, 4, "last", False), (0, 9, "last", False), (3, 9, "wait", False)],
)
def test_an_agent_that_was_away_does_not_wait_for_the_dead_while_the_fleet_goes_on(played, ahead, missing, left):
    network = moved_network((0, 1), (0, 2))
    back, alive = Peer(network, 0, (1, 2), missing=missing, deadline=0.05), Peer(network, 1, (0,))
    if played:
        back.publish(played)
    alive.publish(ahead)
    assert back.around.gather(60) == {2}
    assert network.time.monotonic() == pytest.approx(1000.05 if left else 1060)


def test_who_appeared_once_is_not_waited_for_again():
    network = moved_network((0, 1), (0, 2))
    waiting, quick = Peer(network, 0, (1, 2)), Peer(network, 1, (0,))
    assert quick.around.gather(5) == set()
    network.leave(1)
    network.time.later(0.1, Peer, network, 2, (0,))
    assert waiting.around.gather(3600) == set()
    assert waiting.around.gather(0.01) == set()
