"""An outbox for receivers at paces of their own: frames lead straight to the newest payload."""

from __future__ import annotations

import numpy as np
import pytest
from test_mailbox import ROUNDS, SCHEMA, inbox, mask_of
from wire_cases import RUN_ID

from peermask.errors import WireError
from peermask.wire import Inbox, frame_size
from peermask.wire.frame import is_keyframe, split_frames
from peermask.wire.mailbox import DirectOutbox


def outbox(**keys):
    return DirectOutbox(RUN_ID, 7, SCHEMA, **keys)


def test_rounds_that_were_skipped_are_not_sent():
    sender, often, seldom = outbox(), inbox(), inbox()
    for k in range(5):
        sender.publish(k + 1, ROUNDS[k])
        often.accept(sender.answer(0, often.history(7)))
        if k in (0, 4):
            frame = sender.answer(1, seldom.history(7))
            seldom.accept(frame)
    assert len(split_frames(frame)) == 1
    assert not is_keyframe(frame)
    assert (mask_of(often) == mask_of(seldom)).all()
    assert (mask_of(seldom) == ROUNDS[4]["mask"]).all()
    assert often.histories[7].name != seldom.histories[7].name


def test_bytes_are_what_the_codec_counts_from_that_history():
    sender, receiver = outbox(), inbox()
    sender.publish(1, ROUNDS[0])
    receiver.accept(sender.answer(0, None))
    history = receiver.histories[7]
    sender.publish(4, ROUNDS[3])
    sender.publish(5, ROUNDS[4])
    assert len(sender.answer(0, history.name)) == frame_size(ROUNDS[4], SCHEMA, history)[0]


def test_an_answer_that_got_lost_is_given_again():
    sender, receiver = outbox(), inbox()
    sender.publish(1, ROUNDS[0])
    receiver.accept(sender.answer(0, None))
    held = receiver.history(7)
    sender.publish(2, ROUNDS[1])
    lost = sender.answer(0, held)
    assert sender.answer(0, held) == lost
    sender.publish(3, ROUNDS[2])
    receiver.accept(sender.answer(0, held))
    assert (mask_of(receiver) == ROUNDS[2]["mask"]).all()
    assert sender.answer(0, receiver.history(7)) is None  # it has the newest


def test_who_names_what_it_was_never_sent_gets_a_keyframe():
    sender, receiver = outbox(), inbox()
    sender.publish(1, ROUNDS[0])
    receiver.accept(sender.answer(0, None))
    sender.publish(2, ROUNDS[1])
    assert is_keyframe(sender.answer(5, receiver.history(7)))  # another's
    assert is_keyframe(sender.answer(0, 12345))


def test_receivers_that_hold_the_same_get_one_frame_and_share_a_history():
    sender = outbox(opening=ROUNDS[0])
    one, other = (Inbox(RUN_ID, SCHEMA, [7], lambda _: ROUNDS[0]) for _ in range(2))
    sender.publish(1, ROUNDS[1])
    frames = [sender.answer(number, box.history(7)) for number, box in enumerate((one, other))]
    assert frames[0] is frames[1]
    assert not is_keyframe(frames[0])  # it builds on the opening
    assert sender.held[0][-1] is sender.held[1][-1]


def test_rounds_only_rise():
    sender = outbox()
    assert sender.answer(0, None) is None
    sender.publish(3, ROUNDS[0])
    with pytest.raises(WireError, match="round 3 is not newer"):
        sender.publish(3, ROUNDS[1])
    with pytest.raises(WireError):
        sender.publish(4, {"mask": np.zeros(3, np.bool_)})
