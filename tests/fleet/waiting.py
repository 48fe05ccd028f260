"""Waiting for something that real sockets, threads or processes bring about."""

from __future__ import annotations

import threading

PATIENCE = 300.0  # seconds, of which only a failing test needs more than a few


def until(holds, what="what was waited for"):
    """Look again and again until something holds; return what it was."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.005)):
        if found := holds():
            return found
        pause.wait(0.005)
    said = what() if callable(what) else what
    raise AssertionError(f"{said}: did not happen")
