"""Types of the fixtures that run a command in this process."""

from __future__ import annotations

from collections.abc import Callable

Call = Callable[..., tuple[int, str, str]]
Refused = Callable[..., str]
