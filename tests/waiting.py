"""Waiting for what real sockets, threads or processes bring about: a condition, never a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

PATIENCE = 300.0  # seconds without progress, of which only a failing test needs more than a few
LOOK_SECONDS = 0.02
T = TypeVar("T")


def until(
    holds: Callable[[], T],
    what: str | Callable[[], object] = "the condition",
    *,
    changed: threading.Condition | None = None,
    progress: Callable[[], Any] = lambda: None,
) -> T:
    """Look again and again until something holds, and return it.

    Args:
        holds: the condition.
        what: its name, or a function that describes the failure.
        changed: notified when it may hold earlier than at the next look.
        progress: a busy machine is slow, so patience begins anew whenever its value changes.
    """
    changed, waited, before = changed or threading.Condition(), 0.0, None
    begun = time.process_time()  # of this process alone: looks that compute count as long on a busy machine
    while not (found := holds()):
        ended = time.process_time()
        waited, before = (waited + LOOK_SECONDS + ended - begun, now) if (now := progress()) == before else (0.0, now)
        begun = ended
        assert waited < PATIENCE, f"did not happen: {what() if callable(what) else what}"
        with changed:
            changed.wait(LOOK_SECONDS)
    return found
