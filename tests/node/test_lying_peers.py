"""Peers with a valid certificate that do not keep to the protocol."""

from __future__ import annotations

import time

import pytest
from memory_network import MemoryNetwork
from pulling_peers import CARD, SCHEMA, Peer, message, pair, same

from peermask.node.messages import Answer, Card, Greeting, Pull, decode_request
from peermask.node.responder import Responder


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
        (framed(1, card=Card("other", "", "")), "belongs to run"),
    ],
    ids=["empty", "rubbish", "no frame", "cut", "another sender", "another run"],
)
def test_what_is_not_a_frame_of_its_sender_changes_nothing(answer, line):
    network = MemoryNetwork([(0, 1)])
    liar(network, 1, answer)
    asker = Peer(network, 0, (1,))
    heard = asker.pull(1)
    assert heard.payloads == {}
    assert heard.absent[0].why == "silent"
    assert any(line in said for said in asker.lines)
    assert len(asker.lines) < 50


def test_a_bad_frame_once_is_asked_for_again():
    network = MemoryNetwork([(0, 1)])
    liar(network, 1, b"rubbish", framed(1))
    assert same(Peer(network, 0, (1,)).pull(1).payloads[1], 1, 1)


def test_a_neighbour_cannot_speak_for_another_neighbour():
    network = MemoryNetwork([(0, 1), (0, 2)])
    liar(network, 1, framed(2))
    asker, honest = Peer(network, 0, (1, 2)), Peer(network, 2, (0,))
    honest.publish(1)
    heard = asker.pull(1)
    assert list(heard.payloads) == [2]
    assert [absence.neighbour for absence in heard.absent] == [1]


def test_a_stranger_gets_no_answer():
    _, peer = pair()
    answers = []
    peer.responder(7, Greeting(CARD, 0).encode(), answers.append)
    peer.responder(7, Pull(CARD.identity, 1, None, 0).encode(), answers.append)
    assert answers == []
    assert peer.responder.asked == {}


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
    peer.responder(0, Pull(CARD.identity, 1, None, 0.001).encode(), answers.append)
    time.sleep(0.01)
    peer.publish(1)
    assert answers == []
