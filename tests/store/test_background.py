"""Work beside the caller: in order, one at a time, and no failure is lost."""

from __future__ import annotations

import threading

import pytest

from peermask.errors import RunError
from peermask.store.checkpoint import Background


def test_one_thing_at_a_time_and_in_order() -> None:
    done: list[int] = []
    gate = threading.Event()

    def first() -> None:
        gate.wait()
        done.append(1)

    with Background() as disk:
        disk.do(first)
        assert done == []  # the caller went on
        gate.set()
        disk.do(lambda: done.append(2))
        assert done[0] == 1  # a second waits for the first
    assert done == [1, 2]


def fail() -> None:
    raise RunError("cannot write x: No space left on device")


def test_a_failure_is_raised_at_the_next_thing_or_at_the_end() -> None:
    done: list[int] = []
    with Background() as disk:
        disk.do(fail)
        with pytest.raises(RunError, match="No space left"):
            disk.do(lambda: done.append(1))
        disk.do(lambda: done.append(2))
    assert done == [2]
    with pytest.raises(RunError, match="No space left"), Background() as disk:
        disk.do(fail)


def test_what_the_caller_raises_is_not_hidden_by_a_failure_behind_it() -> None:
    def caller() -> None:
        with Background() as disk:
            disk.do(fail)
            raise KeyError

    with pytest.raises(KeyError):
        caller()
