"""Pulling: a receiver names its history and gets the smallest frame; nothing bad changes that history."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_cases import RUN_ID, random_bits, resealed

from peermask.errors import WireError
from peermask.wire import Inbox, Leaf, Outbox, Schema, frame_size
from peermask.wire.frame import is_keyframe
from peermask.wire.mailbox import SHARED_ROUNDS

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
        receiver.accept(sender.answer(0, receiver.history(7)))
        assert (mask_of(receiver) == ROUNDS[k]["mask"]).all()


def test_who_holds_nothing_gets_a_keyframe_and_then_deltas():
    sender, receiver = outbox(0), inbox()
    keyframe = sender.answer(0, receiver.history(7))
    header, _ = receiver.accept(keyframe)
    assert (header.round, header.history, receiver.newest_round(7)) == (0, None, 0)
    sender.publish(1, ROUNDS[1])
    held = receiver.history(7)
    delta = sender.answer(0, held)
    header, payload = receiver.accept(delta)
    assert (header.round, header.history) == (1, held)
    assert (payload["mask"] == ROUNDS[1]["mask"]).all()
    assert len(delta) < len(keyframe) / 4


def test_one_frame_leads_over_all_rounds_that_were_missed():
    sender, often, seldom = outbox(), inbox(), inbox()
    for k in range(5):
        sender.publish(k, ROUNDS[k])
        often.accept(sender.answer(0, often.history(7)))
        if k in (0, 4):
            frame = sender.answer(1, seldom.history(7))
            seldom.accept(frame)
    assert not is_keyframe(frame)
    assert (mask_of(often) == mask_of(seldom)).all()
    assert (mask_of(seldom) == ROUNDS[4]["mask"]).all()
    assert often.histories[7].name != seldom.histories[7].name


def test_bytes_are_what_the_codec_counts_from_that_history():
    sender, receiver = outbox(0), inbox()
    receiver.accept(sender.answer(0, None))
    history = receiver.histories[7]
    for k in (3, 4):
        sender.publish(k, ROUNDS[k])
    assert len(sender.answer(0, history.name)) == frame_size(ROUNDS[4], SCHEMA, history)[0]


def test_an_answer_that_got_lost_is_given_again():
    sender, receiver = outbox(0), inbox()
    receiver.accept(sender.answer(0, None))
    name = receiver.history(7)
    sender.publish(1, ROUNDS[1])
    lost = sender.answer(0, name)
    assert sender.answer(0, name) == lost
    sender.publish(2, ROUNDS[2])
    frame = sender.answer(0, name)
    assert not is_keyframe(frame)
    receiver.accept(frame)
    assert (mask_of(receiver) == ROUNDS[2]["mask"]).all()


def test_a_history_that_was_never_sent_is_answered_with_a_keyframe():
    sender, receiver = outbox(0), inbox()
    receiver.accept(sender.answer(0, None))
    sender.publish(1, ROUNDS[1])
    assert is_keyframe(sender.answer(5, receiver.history(7)))  # another receiver's
    assert is_keyframe(sender.answer(0, 12345))


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
        for number, hears in enumerate(who):
            if hears:
                receivers[number].accept(sender.answer(number, receivers[number].history(7)))
                assert (mask_of(receivers[number]) == mask).all()
        assert len({key[1] for key in sender.frames}) <= SHARED_ROUNDS


def test_receivers_of_the_same_frames_share_them_and_a_history():
    sender = Outbox(RUN_ID, 7, SCHEMA, opening=ROUNDS[0])
    first, second = (Inbox(RUN_ID, SCHEMA, [7], lambda _: ROUNDS[0]) for _ in range(2))
    for k in (1, 2):
        sender.publish(k, ROUNDS[k])
        frames = [sender.answer(number, box.history(7)) for number, box in enumerate((first, second))]
        assert frames[0] is frames[1]
        assert not is_keyframe(frames[0])
        assert sender.histories[0][-1] is sender.histories[1][-1]
        first.accept(frames[0])
        second.accept(frames[1])


def test_payloads_and_frames_of_old_rounds_are_deleted():
    sender = outbox(0, kept=2)
    for k in (1, 2, 3):
        sender.answer(k, None)
        sender.publish(k, ROUNDS[k])
    assert sorted(sender.payloads) == [2, 3]
    assert list(sender.frames) == [(None, 2)]


def test_an_opening_makes_the_first_message_a_delta():
    opening = {"mask": FIRST ^ random_bits("opening", 3500, 0.02)}
    sender = Outbox(RUN_ID, 7, SCHEMA, opening=opening)
    receiver = Inbox(RUN_ID, SCHEMA, [7], lambda _: opening)
    assert receiver.newest_round(7) is None
    sender.publish(1, ROUNDS[0])
    frame = sender.answer(0, receiver.history(7))
    assert len(frame) < len(sender.answer(0, None)) / 4
    receiver.accept(frame)
    assert (mask_of(receiver) == ROUNDS[0]["mask"]).all()


def test_another_opening_is_answered_with_a_keyframe():
    """A machine that works out another one is not understood wrongly."""
    sender = Outbox(RUN_ID, 7, SCHEMA, opening={"mask": FIRST})
    receiver = Inbox(RUN_ID, SCHEMA, [7], lambda _: ROUNDS[1])
    sender.publish(1, ROUNDS[2])
    header, payload = receiver.accept(sender.answer(0, receiver.history(7)))
    assert header.history is None
    assert (payload["mask"] == ROUNDS[2]["mask"]).all()


def test_a_slower_asker_gets_the_round_it_asks_for():
    sender, receiver = outbox(0), inbox()
    receiver.accept(sender.answer(0, None))
    for k in (1, 2, 3):
        sender.publish(k, ROUNDS[k])
    for k in (1, 2, 3):
        held = receiver.history(7)
        header, payload = receiver.accept(sender.answer(0, held, k))
        assert (header.round, header.history) == (k, held)
        assert (payload["mask"] == ROUNDS[k]["mask"]).all()


def test_a_round_not_kept_or_not_published_has_no_frame():
    sender = outbox(0, 1, 2, 3, kept=2)
    assert sender.answer(0, None, 1) is None
    assert sender.answer(0, None, 4) is None


def test_who_holds_a_later_round_gets_an_older_one_whole():
    sender, receiver = outbox(0, 1, 2), inbox()
    receiver.accept(sender.answer(0, None))
    assert sender.answer(0, receiver.history(7), 1) == outbox(0, 1).answer(0, None)


def test_no_news_no_frame():
    assert outbox().answer(0, None) is None
    sender, receiver = outbox(0, 1), inbox()
    receiver.accept(sender.answer(0, None))
    assert sender.answer(0, receiver.history(7)) is None


def test_rounds_are_published_in_order():
    sender = outbox(2)
    with pytest.raises(WireError, match="not newer"):
        sender.publish(2, ROUNDS[2])
    with pytest.raises(WireError):
        sender.publish(3, {"mask": np.zeros(3, np.bool_)})


@pytest.mark.parametrize("again", [0, 1])
def test_replays_are_refused(again):
    receiver = inbox(outbox(1).answer(0, None))
    with pytest.raises(WireError, match="round 1 is held"):
        receiver.accept(outbox(again).answer(0, None))
    assert (mask_of(receiver) == ROUNDS[1]["mask"]).all()


def test_strangers_are_refused():
    box = Inbox(RUN_ID, SCHEMA, senders=[8])
    with pytest.raises(WireError, match="agent 7, which is no neighbour"):
        box.accept(outbox(0).answer(0, None))
    assert box.newest == {}
    with pytest.raises(WireError, match="from agent 7, expected 8"):
        inbox().accept(outbox(0).answer(0, None), 8)


def test_a_delta_on_a_history_not_held_is_refused():
    other, receiver = inbox(), inbox(outbox(0).answer(0, None))
    sender = outbox()
    follow(sender, other, 1)
    sender.publish(2, ROUNDS[2])
    with pytest.raises(WireError, match=r"builds on history .* is held"):
        receiver.accept(sender.answer(0, other.history(7)))
    assert (mask_of(receiver) == ROUNDS[0]["mask"]).all()


def test_two_frames_at_once_are_refused():
    frame = outbox(0).answer(0, None)
    with pytest.raises(WireError, match=f"frame has {2 * len(frame)} bytes, its header says {len(frame)}"):
        inbox().accept(2 * frame)


def test_a_bad_frame_changes_nothing():
    sender, receiver = outbox(0), inbox()
    receiver.accept(sender.answer(0, None))
    for k in (1, 2):
        sender.publish(k, ROUNDS[k])
    frame = sender.answer(0, receiver.history(7), 1)
    history = receiver.history(7)
    for damaged in (frame[:-1], frame[:-9] + b"\0" * 9, resealed(frame[:40] + b"\xff" + frame[41:]), b""):
        with pytest.raises(WireError):
            receiver.accept(damaged)
    assert (receiver.newest_round(7), receiver.history(7)) == (0, history)
    assert (mask_of(receiver) == ROUNDS[0]["mask"]).all()
    receiver.accept(sender.answer(0, history))
    assert np.array_equal(mask_of(receiver), ROUNDS[2]["mask"])
