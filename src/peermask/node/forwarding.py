"""Two connections joined: bytes that arrive on one are sent on the other."""

from __future__ import annotations

import asyncio
import socket
from typing import cast


def keep_alive(opened: socket.socket) -> None:
    """Send TCP keep-alives, so that routers keep an idle connection and its loss is noticed within a minute."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for word, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, word):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, word), value)


class Side(asyncio.Protocol):
    """One of two joined connections; what it reads, the other writes."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()
