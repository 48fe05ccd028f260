"""Sockets beside the agent's own work: an event loop in a thread, joined connections, a TLS client's hello."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

# An event loop in its own thread, for sockets that are served while the agent computes.

T = TypeVar("T")
TRIES = 100  # of 10 ms: how long connections may take to close


@contextmanager
def loop_in_thread(name: str, loop: asyncio.AbstractEventLoop | None = None) -> Iterator[asyncio.AbstractEventLoop]:
    """A loop, by default a new one, that runs until the block ends.

    Its servers must be closed by then; remaining connections are aborted.
    """
    loop = loop or asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        run_in(loop, _abort_connections(loop))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def run_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of another thread, and wait for its result."""
    return asyncio.run_coroutine_threadsafe(work, loop).result()


async def _abort_connections(loop: asyncio.AbstractEventLoop) -> None:
    """Of closed servers: those that were just being accepted, which are tasks at first, and those with data that nobody
    reads."""
    idle = 0
    for _ in range(TRIES):
        await asyncio.sleep(0.01)
        # No public name lists the connections of a loop; a loop that has no such list leaves this to the system.
        known = list(getattr(loop, "_transports", {}).values())
        remaining = [one for one in known if getattr(one, "_sock", None) is not None]  # the others are closed
        for transport in remaining:
            transport.abort()
        idle = 0 if remaining or len(asyncio.all_tasks()) > 1 else idle + 1
        if idle == 3:
            return


async def cancel_others() -> None:
    """Cancel all other tasks of the running loop, and wait until they have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


# Two connections joined: bytes that arrive on one are sent on the other.


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


# The first message of a TLS client, as far as the gate parses it: that it is one, and which protocol it asks for.

RECORD, CLIENT_HELLO, LARGEST_HELLO = 22, 1, 2**14
ALPN = 16  # number of the extension


def hello_length(data: bytes) -> int | None:
    """Bytes of the record with the ClientHello, or as many as are needed to know that; None if it is not one.

    22 3 minor | length (2) | 1 | ...
    """
    expected = ((RECORD,), (3,), (1, 2, 3))
    if any(byte not in allowed for byte, allowed in zip(data, expected, strict=False)):
        return None
    if len(data) < 6:
        return 6
    length = int.from_bytes(data[3:5], "big")
    return 5 + length if data[5] == CLIENT_HELLO and 4 < length <= LARGEST_HELLO else None


def protocols(hello: bytes) -> list[bytes]:
    """The ALPN protocols of a ClientHello; none if it is malformed.

    record (5) | 1 length (3) | version (2) random (32) | session id, ciphers, compressions | length (2) | extensions
    """
    at = 5 + 4 + 2 + 32
    for width in (1, 2, 1):
        at += width + int.from_bytes(hello[at : at + width], "big")
    at += 2
    while at + 4 <= len(hello):
        kind, length = (int.from_bytes(hello[at + i : at + i + 2], "big") for i in (0, 2))
        if kind == ALPN:
            names, found = hello[at + 6 : at + 4 + length], []
            while names:
                found.append(names[1 : 1 + names[0]])
                names = names[1 + names[0] :]
            return found
        at += 4 + length
    return []
