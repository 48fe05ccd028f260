"""Pulling: an asker names what it holds and gets the smallest frame; nothing bad changes what it holds."""

from __future__ import annotations

import numpy as np
import pytest
from wire_cases import RUN_ID, random_bits, resealed

from peermask.errors import WireError
from peermask.wire import Inbox, Leaf, Outbox, Schema

LAYERS = (3000, 500)
SCHEMA = Schema((Leaf("mask", True, LAYERS),))
FIRST = random_bits("first", 3500, 0.3)
ROUNDS = [{"mask": FIRST ^ random_bits(f"flips {k}", 3500, 0.002 * k)} for k in range(5)]


def outbox(*rounds, kept=8):
    box = Outbox(RUN_ID, 7, SCHEMA, kept)
    for k in rounds:
        box.publish(k, ROUNDS[k])
    return box


def inbox(*frames):
    box = Inbox(RUN_ID, SCHEMA, senders=[7, 8])
    for frame in frames:
        box.accept(frame)
    return box


def mask_of(box):
    return box.newest[7][1]["mask"]


def test_who_holds_nothing_gets_a_keyframe_and_then_deltas():
    sender, receiver = outbox(0), inbox()
    keyframe = sender.answer(receiver.held(7))
    header, _ = receiver.accept(keyframe)
    assert (header.round, header.base_round, receiver.held(7)) == (0, None, 0)
    sender.publish(1, ROUNDS[1])
    delta = sender.answer(receiver.held(7))
    header, payload = receiver.accept(delta)
    assert (header.round, header.base_round) == (1, 0)
    assert (payload["mask"] == ROUNDS[1]["mask"]).all()
    assert len(delta) < len(keyframe) / 4


def test_rounds_may_be_missed():
    receiver = inbox(outbox(0).answer(None))
    receiver.accept(outbox(0, 1, 2, 3).answer(0))
    assert (mask_of(receiver) == ROUNDS[3]["mask"]).all()


def test_a_round_too_old_is_answered_with_a_keyframe():
    sender = outbox(0, 1, 2, 3, kept=2)
    assert sorted(sender.payloads) == [2, 3]
    assert sender.answer(0) == sender.answer(None)


def test_a_slower_asker_gets_the_round_it_asks_for():
    sender, receiver = outbox(0, 1, 2, 3), inbox(outbox(0).answer(None))
    for k in (1, 2, 3):
        header, payload = receiver.accept(sender.answer(receiver.held(7), k))
        assert (header.round, header.base_round) == (k, k - 1)
        assert (payload["mask"] == ROUNDS[k]["mask"]).all()


def test_a_round_not_kept_or_not_published_has_no_frame():
    sender = outbox(0, 1, 2, 3, kept=2)
    assert sender.answer(None, 1) is None
    assert sender.answer(None, 4) is None
    assert sender.answer(2, 2) is None


def test_who_holds_a_later_round_gets_an_older_one_whole():
    assert outbox(0, 1, 2).answer(2, 1) == outbox(0, 1).answer(None)


def test_no_news_no_frame():
    assert outbox().answer(None) is None
    assert outbox(0, 1).answer(1) is None


def test_rounds_are_published_in_order():
    with pytest.raises(WireError, match="not newer"):
        outbox(2).publish(2, ROUNDS[2])


@pytest.mark.parametrize("again", [0, 1])
def test_replays_are_refused(again):
    receiver = inbox(outbox(1).answer(None))
    with pytest.raises(WireError, match="round 1 is held"):
        receiver.accept(outbox(again).answer(None))
    assert (mask_of(receiver) == ROUNDS[1]["mask"]).all()


def test_strangers_are_refused():
    box = Inbox(RUN_ID, SCHEMA, senders=[8])
    with pytest.raises(WireError, match="agent 7, which is no neighbour"):
        box.accept(outbox(0).answer(None))
    assert box.newest == {}


def test_a_delta_on_a_round_not_held_is_refused():
    with pytest.raises(WireError, match="builds on round 1"):
        inbox(outbox(0).answer(None)).accept(outbox(1, 2).answer(1))


def test_a_bad_frame_changes_nothing():
    receiver = inbox(outbox(0).answer(None))
    frame = outbox(0, 1).answer(0)
    for damaged in (frame[:-1], frame[:-9] + b"\0" * 9, resealed(frame[:40] + b"\xff" + frame[41:]), b""):
        with pytest.raises(WireError):
            receiver.accept(damaged)
    assert receiver.held(7) == 0
    assert (mask_of(receiver) == ROUNDS[0]["mask"]).all()
    receiver.accept(frame)
    assert np.array_equal(mask_of(receiver), ROUNDS[1]["mask"])
