"""Pulling: an asker names what it holds and gets the smallest frame; nothing bad changes what it holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_cases import RUN_ID, random_bits, resealed

from peermask.errors import WireError
from peermask.wire import Inbox, Leaf, Outbox, Schema
from peermask.wire.frame import split_frames
from peermask.wire.mailbox import KEPT_LINES

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


def follow(sender, receiver, *rounds):
    """Publish rounds, and pull each."""
    for k in rounds:
        sender.publish(k, ROUNDS[k])
        receiver.accept(sender.answer(receiver.history(7)))
        assert (mask_of(receiver) == ROUNDS[k]["mask"]).all()


def test_who_holds_nothing_gets_a_keyframe_and_then_deltas():
    sender, receiver = outbox(0), inbox()
    keyframe = sender.answer(receiver.history(7))
    header, _ = receiver.accept(keyframe)
    assert (header.round, header.history, receiver.held(7)) == (0, None, 0)
    sender.publish(1, ROUNDS[1])
    held = receiver.history(7)
    delta = sender.answer(held)
    header, payload = receiver.accept(delta)
    assert (header.round, header.history) == (1, held)
    assert (payload["mask"] == ROUNDS[1]["mask"]).all()
    assert len(delta) < len(keyframe) / 4


def test_rounds_may_be_missed():
    sender, receiver = outbox(0), inbox()
    receiver.accept(sender.answer(None))
    for k in (1, 2, 3):
        sender.publish(k, ROUNDS[k])
    answer = sender.answer(receiver.history(7))
    assert len(split_frames(answer)) == 3
    receiver.accept(answer)
    assert (mask_of(receiver) == ROUNDS[3]["mask"]).all()
    sender.publish(4, ROUNDS[4])
    assert len(split_frames(sender.answer(receiver.history(7)))) == 1


def test_many_missed_rounds_are_answered_with_a_keyframe_where_that_is_shorter():
    sender, receiver = Outbox(RUN_ID, 7, SCHEMA), inbox()
    masks = [{"mask": random_bits(f"far {k}", 3500, 0.3)} for k in range(5)]
    sender.publish(0, masks[0])
    receiver.accept(sender.answer(None))
    for k in range(1, 5):
        sender.publish(k, masks[k])
    assert len(split_frames(sender.answer(receiver.history(7)))) == 1
    receiver.accept(sender.answer(receiver.history(7)))
    assert (mask_of(receiver) == masks[4]["mask"]).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=30), st.integers(0, 9))
def test_whatever_is_lost_masks_are_right(heard, seed):
    """Three receivers, each of which hears some rounds of one sender that starts again in the middle."""
    receivers = [inbox() for _ in range(3)]
    sender = Outbox(RUN_ID, 7, SCHEMA, kept=4)
    mask = FIRST
    for k, who in enumerate(heard):
        mask = mask ^ random_bits(f"lossy {seed} {k}", 3500, 0.01)
        if k == 15:
            sender = Outbox(RUN_ID, 7, SCHEMA, kept=4)
        sender.publish(k, {"mask": mask})
        for receiver, hears in zip(receivers, who, strict=True):
            if hears:
                receiver.accept(sender.answer(receiver.history(7)))
                assert (mask_of(receiver) == mask).all()
        assert len(sender.lines) <= KEPT_LINES


def test_those_who_followed_the_same_frames_share_them():
    sender, first, second = outbox(0), inbox(), inbox()
    for receiver in (first, second):
        receiver.accept(sender.answer(None))
    sender.publish(1, ROUNDS[1])
    assert sender.answer(first.history(7)) == sender.answer(second.history(7))
    assert len(sender.lines) == 1


def test_a_line_nobody_follows_any_more_is_forgotten():
    sender, receiver = outbox(0, kept=2), inbox()
    receiver.accept(sender.answer(None))
    for k in (1, 2, 3):
        sender.publish(k, ROUNDS[k])
    assert sender.lines == []
    assert sorted(sender.payloads) == [2, 3]
    assert sender.answer(receiver.history(7)) == sender.answer(None)


def test_of_many_lines_the_ones_used_last_are_kept():
    sender, faithful = Outbox(RUN_ID, 7, SCHEMA), inbox()
    for k in range(7):
        sender.publish(k, {"mask": FIRST ^ random_bits(f"many {k}", 3500, 0.002)})
        faithful.accept(sender.answer(faithful.history(7)))
        sender.answer(None)  # somebody new in every round
    assert len(sender.lines) == KEPT_LINES
    sender.publish(7, ROUNDS[1])
    faithful.accept(sender.answer(faithful.history(7)))
    assert sender.lines[-1].history.contexts["mask"].frames == 7  # since the first round


def test_an_opening_makes_the_first_message_a_delta():
    opening = {"mask": FIRST ^ random_bits("opening", 3500, 0.02)}
    sender = Outbox(RUN_ID, 7, SCHEMA, opening=opening)
    receiver = Inbox(RUN_ID, SCHEMA, [7], lambda _: opening)
    assert receiver.held(7) is None
    sender.publish(1, ROUNDS[0])
    frame = sender.answer(receiver.history(7))
    assert len(frame) < len(sender.answer(None)) / 4
    receiver.accept(frame)
    assert (mask_of(receiver) == ROUNDS[0]["mask"]).all()


def test_another_opening_is_answered_with_a_keyframe():
    """A machine that works out another one is not understood wrongly."""
    sender = Outbox(RUN_ID, 7, SCHEMA, opening={"mask": FIRST})
    receiver = Inbox(RUN_ID, SCHEMA, [7], lambda _: ROUNDS[1])
    sender.publish(1, ROUNDS[2])
    header, payload = receiver.accept(sender.answer(receiver.history(7)))
    assert header.history is None
    assert (payload["mask"] == ROUNDS[2]["mask"]).all()


def test_a_slower_asker_gets_the_round_it_asks_for():
    sender, receiver = outbox(0), inbox()
    receiver.accept(sender.answer(None))
    for k in (1, 2, 3):
        sender.publish(k, ROUNDS[k])
    for k in (1, 2, 3):
        held = receiver.history(7)
        header, payload = receiver.accept(sender.answer(held, k))
        assert (header.round, header.history) == (k, held)
        assert (payload["mask"] == ROUNDS[k]["mask"]).all()


def test_a_round_not_kept_or_not_published_has_no_frame():
    sender = outbox(0, 1, 2, 3, kept=2)
    assert sender.answer(None, 1) is None
    assert sender.answer(None, 4) is None


def test_who_holds_a_later_round_gets_an_older_one_whole():
    sender, receiver = outbox(0, 1, 2), inbox()
    receiver.accept(sender.answer(None))
    assert sender.answer(receiver.history(7), 1) == outbox(0, 1).answer(None)


def test_no_news_no_frame():
    assert outbox().answer(None) is None
    sender, receiver = outbox(0, 1), inbox()
    receiver.accept(sender.answer(None))
    assert sender.answer(receiver.history(7)) is None


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
    with pytest.raises(WireError, match="from agent 7, expected 8"):
        inbox().accept(outbox(0).answer(None), 8)


def test_a_delta_on_a_history_not_held_is_refused():
    other, receiver = inbox(), inbox(outbox(0).answer(None))
    sender = outbox()
    follow(sender, other, 1)
    sender.publish(2, ROUNDS[2])
    with pytest.raises(WireError, match=r"builds on history .* is held"):
        receiver.accept(sender.answer(other.history(7)))
    assert (mask_of(receiver) == ROUNDS[0]["mask"]).all()


def test_too_many_frames_at_once_are_refused():
    frame = outbox(0).answer(None)
    with pytest.raises(WireError, match="9 frames at once"):
        inbox().accept(9 * frame)
    with pytest.raises(WireError, match="round 0 follows round 0"):
        inbox().accept(2 * frame)


def test_a_bad_frame_changes_nothing():
    sender, receiver = outbox(0), inbox()
    receiver.accept(sender.answer(None))
    for k in (1, 2):
        sender.publish(k, ROUNDS[k])
    frame = sender.answer(receiver.history(7), 1)
    both = sender.answer(receiver.history(7), 2)
    history = receiver.history(7)
    for damaged in (frame[:-1], frame[:-9] + b"\0" * 9, resealed(frame[:40] + b"\xff" + frame[41:]), b"", both[:-1]):
        with pytest.raises(WireError):
            receiver.accept(damaged)
    assert (receiver.held(7), receiver.history(7)) == (0, history)
    assert (mask_of(receiver) == ROUNDS[0]["mask"]).all()
    receiver.accept(both)
    assert np.array_equal(mask_of(receiver), ROUNDS[2]["mask"])
