"""Where bytes went, and who was missing, worked by hand."""

from __future__ import annotations

from peermask.reports.curves import bytes_spent, faults_of, message_curve
from peermask.wire.frame import FRAME_BYTES


def row(number: int, agent: int, coded: int, **more: str) -> dict[str, str]:
    sizes = {"paper_bits": "800", "bitmap_bytes": "136", "coded_bytes": str(coded)}
    return {"round": str(number), "agent": str(agent), "links": "2", **sizes, **more}


def test_a_first_message_is_a_keyframe_and_the_next_a_delta() -> None:
    spent = bytes_spent([row(1, 0, 100), row(2, 0, 50), row(2, 1, 80)], weights=800)
    assert spent.messages == 6
    assert spent.headers == 6 * FRAME_BYTES
    assert spent.keyframes == 2 * (100 - FRAME_BYTES) + 2 * (80 - FRAME_BYTES)
    assert spent.deltas == 2 * (50 - FRAME_BYTES)
    assert spent.total == 2 * (100 + 50 + 80)
    assert spent.bitmap == 6 * 100
    assert spent.floats == 6 * 3200


def test_real_values_are_sent_whole() -> None:
    spent = bytes_spent([row(1, 0, 100), row(2, 0, 100)], weights=25)  # 800 bits are 32 for each weight
    assert (spent.deltas, spent.keyframes) == (0, 4 * (100 - FRAME_BYTES))


def test_the_kind_of_a_message_is_taken_where_it_was_written() -> None:
    spent = bytes_spent([row(1, 0, 100, kind="delta"), row(2, 0, 100, kind="keyframe")], weights=8)
    assert spent.deltas == spent.keyframes == 2 * (100 - FRAME_BYTES)


def test_the_mean_message_of_each_round() -> None:
    spent = bytes_spent([row(1, 0, 100), row(1, 1, 50), row(2, 0, 10)], weights=8)
    assert message_curve(spent) == ([1, 2], [75.0, 10.0])


def test_faults_say_who_was_missing_and_what_was_done() -> None:
    missing = [
        {"round": "3", "agent": "0", "neighbour": "1", "why": "gone", "used": ""},
        {"round": "4", "agent": "2", "neighbour": "1", "why": "silent", "used": "3"},
    ]
    found = faults_of(missing)
    assert found is not None
    assert found["rows"] == [[3, 0, 1, 0], [4, 2, 1, 1]]
    assert (found["count"], found["replaced"]) == (2, 1)
    assert found["reasons"] == [["gone", 1], ["silent", 1]]
    assert faults_of([]) is None
