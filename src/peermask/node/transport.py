"""The seam to the network: it moves requests and answers between neighbours and knows nothing of masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

Reply = Callable[[bytes], None]

# asker, request, where the answer goes; the answer may come later, from another thread, or never
Handler = Callable[[int, bytes, Reply], None]


class Transport(Protocol):
    def ask(self, requests: Mapping[int, bytes], patience: float) -> dict[int, bytes]:
        """Ask several neighbours at once; whoever is gone, or silent for `patience` seconds, is left out."""
        ...

    def alive(self) -> frozenset[int]:
        """Neighbours that are there now, as far as the network can tell."""
        ...

    def await_change(self, seconds: float) -> None:
        """Sleep until a neighbour comes or goes, `seconds` at most."""
        ...

    def deaf_to(self) -> frozenset[int]:
        """Neighbours that are linked, and are not heard before this is opened anew."""
        ...
