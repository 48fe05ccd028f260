"""Peers with a valid certificate that do not keep to the protocol."""

from __future__ import annotations

import pytest
from pulling_peers import CARD, SCHEMA, Peer, message, moved_network, pair, same

from peermask.errors import WireError
from peermask.fleet.admission import LOGGED_LINES, LOGGED_OUT_OF_STEP, Refusals
from peermask.fleet.messages import Answer, ExperimentId, Greeting, Pull, decode_answer, decode_request
from peermask.fleet.responder import AnswerLimits, Responder
from peermask.wire import FrameHeader, encode_frame
from peermask.wire.frame import name_after
from peermask.wire.history import History


def liar(network, agent, *answers):
    """A peer that greets well and then says what it likes, the last thing for ever."""
    said = list(answers)

    def handler(_asker, request, reply):
        if isinstance(decode_request(request), Greeting):
            reply(Greeting(CARD, 1).encode())
        else:
            reply(said.pop(0) if len(said) > 1 else said[0])

    network.join(agent, handler)


def framed(sender, number=1, card=CARD):
    responder = Responder(sender, [0], card, print)
    responder.publish(number, message(sender, number), SCHEMA)
    out = []
    responder(0, Pull(card.identity, number, None, 0).encode(), out.append)
    return out[0]


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (b"", "bad answer"),
        (b"rubbish", "bad answer"),
        (Answer(1, b"rubbish").encode(), "bad frame"),
        (framed(1)[:-1], "bad frame"),
        (framed(2), "no neighbour"),
        (framed(1, card=ExperimentId("other", "", "")), "belongs to run"),
    ],
    ids=["empty", "rubbish", "no frame", "cut", "another sender", "another run"],
)
def test_what_is_not_a_frame_of_its_sender_changes_nothing(answer, line):
    network = moved_network((0, 1))
    liar(network, 1, answer)
    asker = Peer(network, 0, (1,))
    heard = asker.pull(1)
    assert heard.payloads == {}
    assert heard.absent[0].why == "refused (damaged)"
    assert any(line in said for said in asker.lines)
    assert asker.responder.refusals.counts() == {1: {"damaged": 3}}  # then the round goes on without it


def test_a_bad_frame_once_is_asked_for_again():
    network = moved_network((0, 1))
    liar(network, 1, b"rubbish", framed(1))
    assert same(Peer(network, 0, (1,)).pull(1).payloads[1], 1, 1)


def test_a_neighbour_cannot_speak_for_another_neighbour():
    network = moved_network((0, 1), (0, 2))
    liar(network, 1, framed(2))
    asker, honest = Peer(network, 0, (1, 2)), Peer(network, 2, (0,))
    honest.publish(1)
    heard = asker.pull(1)
    assert list(heard.payloads) == [2]
    assert [absence.neighbour for absence in heard.absent] == [1]


def test_who_asks_and_never_answers_uses_up_ever_fewer_rounds():
    """As one does whose frames are too large to arrive. By hand: rests of 0, 2, 6, 14, 30 limits of two rounds each."""
    network = moved_network((0, 1), (0, 2))
    asker, honest = Peer(network, 0, (1, 2), deadline=0.25), Peer(network, 2, (0,))
    time, costly = network.time, []

    def greets_only(_asker, request, reply):
        if isinstance(decode_request(request), Greeting):
            reply(Greeting(CARD, 1).encode())

    network.join(1, greets_only)
    for number in range(1, 111):
        honest.publish(number)
        question = Pull(CARD.identity, number, None, 0).encode()
        time.later(0.0625, asker.responder, 1, question, lambda _: None)  # it is there
        before = time.monotonic()
        heard = asker.pull(number)
        assert list(heard.payloads) == [2]
        if time.monotonic() > before:
            costly.append(number)
        time.sleep(0.125)
    assert costly == [1, 2, 6, 18, 46, 106]
    back = Peer(network, 1, (0,))
    back.publish(number + 1)
    honest.publish(number + 1)
    time.sleep(62 * 0.25)
    assert asker.pull(number + 1).absent == []
    assert asker.around.strikes == {}


def test_a_stranger_gets_no_answer():
    _, peer = pair()
    answers = []
    peer.responder(7, Greeting(CARD, 0).encode(), answers.append)
    peer.responder(7, Pull(CARD.identity, 1, None, 0).encode(), answers.append)
    assert answers == []
    assert not peer.responder.moved_past(7, 0)


def test_requests_that_are_none_get_no_answer_and_do_no_harm():
    _, peer = pair()
    answers = []
    for request in (b"", b"P", b"G{}", bytes(100)):
        peer.responder(0, request, answers.append)
    assert answers == []
    assert len(peer.lines) > 0


def test_many_questions_of_one_neighbour_wait_as_one():
    _, peer = pair()
    answers = []
    for number in range(1, 500):
        request = Pull(CARD.identity, number, None, 100).encode()
        peer.responder(0, request, lambda _, n=number: answers.append(n))
    peer.publish(499)
    assert answers == [499]


def test_a_question_whose_time_is_over_is_dropped():
    _, peer = pair()
    answers = []
    peer.responder(0, Pull(CARD.identity, 1, None, 5).encode(), answers.append)
    peer.network.time.sleep(5)
    peer.publish(1)
    assert answers == []


def test_a_peer_that_has_no_news_at_once_does_not_make_the_asker_spin():
    network = moved_network((0, 1))
    asked = []

    def handler(_asker, request, reply):
        asked.append(request)
        greets = isinstance(decode_request(request), Greeting)
        reply(Greeting(CARD, 1).encode() if greets else Answer(1, None).encode())

    network.join(1, handler)
    heard = Peer(network, 0, (1,), deadline=1.0).pull(1)
    assert heard.absent[0].why == "silent"
    assert len(asked) == 8  # a greeting, then at 0, 20, 60, 140, 300 and 620 ms, and when the time is over


def test_a_message_that_comes_at_the_deadline_is_heard():
    network = moved_network((0, 1))
    asker = Peer(network, 0, (1,), deadline=0.2)

    def handler(_asker, request, reply):
        question = decode_request(request)
        if isinstance(question, Greeting):
            reply(Greeting(CARD, 0).encode())
        elif question.patience == 0:  # the last question, when the time is over
            reply(framed(1))

    network.join(1, handler)
    heard = asker.pull(1)
    assert same(heard.payloads[1], 1, 1)
    assert heard.absent == []


def frame_of(sender, number, history=None):
    """A frame without the words of an answer around it."""
    header = FrameHeader(CARD.identity, sender, number, None if history is None else history.name)
    return Answer(number, encode_frame(header, message(sender, number), SCHEMA, history)).encode()


def a_history_nobody_sent(number):
    return History.begin(message(1, number), SCHEMA, 0, 77)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (frame_of(1, 10), "ahead"),
        (frame_of(1, 2**32 - 2), "ahead"),
        (frame_of(1, 1), "old"),
        (frame_of(1, 2, a_history_nobody_sent(2)), "base"),
    ],
    ids=["beyond the last round", "as far as can be", "replayed", "a base nobody sent"],
)
def test_frames_far_ahead_replayed_or_on_an_unknown_base_are_counted_and_refused(answer, why):
    network = moved_network((0, 1))
    liar(network, 1, framed(1), answer)
    asker = Peer(network, 0, (1,))
    asker.puller.rounds = 9
    assert asker.pull(1).absent == []
    heard = asker.pull(2)
    assert [(absence.why, absence.used) for absence in heard.absent] == [(f"refused ({why})", 1)]
    assert list(asker.responder.refusals.counts()[1]) == [why]
    assert same(heard.payloads[1], 1, 1)  # what was held before stays


def test_what_is_not_admitted_is_not_kept():
    network = moved_network((0, 1))
    liar(network, 1, framed(1))
    asker = Peer(network, 0, (1,))

    def admit(_sender, _payload):
        raise WireError("too much", "counts")

    asker.puller.admit = admit
    heard = asker.pull(1)
    assert (heard.payloads, heard.absent[0].why) == ({}, "refused (counts)")


def test_a_neighbour_that_repeats_its_first_message_has_no_influence_after_four_rounds():
    network = moved_network((0, 1))
    liar(network, 1, framed(1))
    asker = Peer(network, 0, (1,))
    assert asker.pull(1).absent == []
    heard = [asker.pull(number) for number in range(2, 8)]
    assert {one.absent[0].why for one in heard} == {"refused (old)"}
    assert [one.absent[0].used for one in heard] == [1, 1, 1, 1, None, None]
    assert [list(one.payloads) for one in heard] == [[1]] * 4 + [[]] * 2


def test_one_that_sends_garbage_does_not_hide_the_next():
    network = moved_network((0, 1), (0, 2))
    peer = Peer(network, 0, (1, 2))
    for number in range(1000):
        peer.responder(1, bytes(number), print)
    peer.responder(2, b"rubbish", print)
    lines = [line for line in peer.lines if "agent 1" in line]
    assert len(lines) == LOGGED_LINES + 1
    assert "further ones are counted, not logged" in lines[-1]
    assert any("agent 2 was refused" in line for line in peer.lines)
    assert peer.responder.refusals.counts() == {1: {"damaged": 1000}, 2: {"damaged": 1}}


def test_messages_out_of_step_are_counted_apart_and_hide_no_bad_ones():
    lines = []
    refusals = Refusals(lines.append)
    for number in range(1000):
        refusals.note(1, "ahead", f"agent 1 sent a frame of round {number}")
    refusals.note(1, "counts", "agent 1 sent a bad frame")
    assert len(lines) == LOGGED_OUT_OF_STEP + 1
    assert lines[-1] == "agent 1 sent a bad frame"
    assert refusals.counts(out_of_step=True) == {1: {"ahead": 1000}}
    assert refusals.counts(out_of_step=False) == {1: {"counts": 1}}
    assert refusals.counts() == {1: {"ahead": 1000, "counts": 1}}


def test_a_flood_of_questions_is_answered_up_to_a_limit_and_others_are_answered_still():
    network = moved_network((0, 1), (0, 2))
    peer = Peer(network, 0, (1, 2))
    peer.publish(1)
    answers, regrown = [], []
    peer.responder(1, Pull(CARD.identity, 1, None, 0).encode(), answers.append)
    held = name_after(decode_answer(answers.pop()).frame)
    question = Pull(CARD.identity, 1, held, 0).encode()  # what is held is the newest: few bytes
    for _ in range(10_000):
        peer.responder(1, question, answers.append)
    limit, refused = AnswerLimits().requests[0], peer.responder.refusals.counts()[1]["flood"]
    assert len(answers) + 1 == limit
    assert len(answers) + refused == 10_000
    peer.responder(2, question, answers.append)
    assert len(answers) + refused == 10_001
    assert len(peer.lines) == 1
    network.time.sleep(30)
    for _ in range(10_000):
        peer.responder(1, question, regrown.append)
    assert len(regrown) == limit / 2


def test_so_many_bytes_a_minute_and_more_with_every_round():
    _, peer = pair()
    peer.publish(1)
    answers = []
    question = Pull(CARD.identity, 1, None, 0).encode()  # nothing is held: a whole message each time
    for _ in range(1000):
        peer.responder(0, question, answers.append)
    first = len(answers)
    assert first < 200
    peer.publish(2)
    for _ in range(10):
        peer.responder(0, question, answers.append)
    assert first + AnswerLimits().messages[1] <= len(answers) < first + 10
