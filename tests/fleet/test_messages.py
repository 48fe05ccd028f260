"""Requests and answers: what is said is what is heard, and no bytes from outside can do more than be refused."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peermask.errors import WireError
from peermask.fleet.messages import Answer, ExperimentId, Greeting, Pull, Ready, decode_answer, decode_request

CARD = ExperimentId("00112233aabbccdd", "c0ffee", "5eed")
ROUND = st.integers(0, 2**32 - 2)
EIGHT = st.binary(min_size=8, max_size=8)


@given(EIGHT, ROUND, st.none() | ROUND, st.integers(0, 10**6))
def test_a_question_arrives_as_it_was_asked(identity, number, history, milliseconds):
    pull = Pull(identity, number, history, milliseconds / 1000)
    assert decode_request(pull.encode()) == pull
    assert decode_request(Ready(identity, number).encode()) == Ready(identity, number)


@given(ROUND, st.none() | st.binary(max_size=50))
def test_an_answer_arrives_as_it_was_given(newest, frame):
    assert decode_answer(Answer(newest, frame).encode()) == Answer(newest, frame)


def test_a_greeting_is_a_request_and_an_answer():
    greeting = Greeting(CARD, 17)
    assert decode_request(greeting.encode()) == decode_answer(greeting.encode()) == greeting


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data):
    for kind in (b"", b"G", b"P", b"B", b"F", b"L"):
        for decode in (decode_request, decode_answer):
            with suppress(WireError):
                decode(kind + data)


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"version": 1}', "[" * 900,
     '{"version": 3, "newest": 0, "run": "", "config_hash": "", "frozen_checksum": ""}',
     '{"version": 2, "newest": -1, "run": "", "config_hash": "", "frozen_checksum": ""}',
     '{"version": 2, "newest": true, "run": "", "config_hash": "", "frozen_checksum": ""}',
     '{"version": 2, "newest": 0, "run": 5, "config_hash": "", "frozen_checksum": ""}',
     '{"version": 2, "newest": 0, "run": "", "config_hash": "", "frozen_checksum": "", "more": ""}',
     " " * 2000],
)  # fmt: skip
def test_greetings_that_are_no_card(text):
    with pytest.raises(WireError):
        decode_answer(b"G" + text.encode())


def test_cards_say_how_they_differ():
    assert CARD.difference(CARD) is None
    other = replace(CARD, config_hash="beef")
    assert CARD.difference(other) == "its config hash is 'beef', here it is 'c0ffee'"
    assert CARD.identity != other.identity
    both = replace(other, frozen_checksum="x" * 1000)
    assert len(CARD.difference(both) or "") in range(1, 250)
    odd = replace(CARD, frozen_checksum="x", data="9x9 images")
    assert CARD.difference(odd) == "its data is '9x9 images', here it is ''"  # of which the weights follow
    assert CARD.identity != odd.identity


@pytest.mark.parametrize("version", [1, 9])
def test_another_version_is_named(version):
    """Whatever its questions look like."""
    for rest in (b"", b"as long as it likes"):
        with pytest.raises(WireError, match=f"peer has version {version}, this device 2; update the older"):
            decode_request(b"P" + bytes([version]) + rest)
    card = b'{"version": %d, "newest": 0, "run": "", "config_hash": "", "frozen_checksum": ""}' % version
    with pytest.raises(WireError, match=f"peer has version {version}, this device 2; update the older"):
        decode_answer(b"G" + card)
