"""What a user has named before: a file each, called by a plug-in's SHA-256 or module, that says where it is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from peermask.errors import PeermaskError
from peermask.files import write_atomically


def _memory() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "peermask" / "plugins"


def remember(key: str, place: str) -> None:
    with suppress(OSError, PeermaskError):  # a home that cannot be written to: then it is named each time
        if recall(key) != place:
            _memory().mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(_memory() / key, place.encode())


def recall(key: str) -> str | None:
    with suppress(OSError, ValueError):
        return (_memory() / key).read_text(encoding="utf-8")
    return None
