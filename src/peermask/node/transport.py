"""The interface to the network: requests and answers between neighbours, as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

Reply = Callable[[bytes], None]

# asker, request, where to send the answer; it may be sent later, from another thread, or never
Handler = Callable[[int, bytes, Reply], None]


class Transport(Protocol):
    def ask(self, requests: Mapping[int, bytes], patience: float) -> dict[int, bytes]:
        """Send each neighbour its request, and return the answers that arrive within `patience` seconds."""
        ...

    def alive(self) -> frozenset[int]:
        """Neighbours that are connected now, as far as the network knows."""
        ...

    def await_change(self, seconds: float) -> None:
        """Sleep until a neighbour connects or disconnects, at most `seconds`."""
        ...

    def stale_links(self) -> frozenset[int]:
        """Neighbours that are linked, but whose messages do not arrive until the session is reopened."""
        ...
