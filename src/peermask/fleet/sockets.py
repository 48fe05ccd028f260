"""Sockets beside the agent's own work: an event loop in a thread, joined connections, a TLS client's hello."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, TypeVar, cast

# An event loop in its own thread, for sockets that are served while the agent computes.

T = TypeVar("T")
Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter
CALL_SECONDS = 30.0  # for anything that another thread waits for; nothing takes as long unless the machine hangs
LEAVE_SECONDS = 5.0  # for connections to close


@contextmanager
def loop_in_thread(name: str, loop: asyncio.AbstractEventLoop | None = None) -> Iterator[asyncio.AbstractEventLoop]:
    """A loop, by default a new one, that runs until the block ends. Its servers must be closed by then."""
    loop = loop or asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        with suppress(TimeoutError):
            run_in(loop, end_tasks())  # such as connections that were just being accepted
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CALL_SECONDS)
        if not thread.is_alive():
            loop.close()


def run_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], seconds: float = CALL_SECONDS) -> T:
    """Run a coroutine in a loop of another thread, and wait for its result; a TimeoutError if it takes too long."""
    return asyncio.run_coroutine_threadsafe(work, loop).result(seconds)


async def end_tasks() -> None:
    """Cancel all other tasks of the running loop, and let connections that were aborted close."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=LEAVE_SECONDS)
    for _ in range(3):  # a TLS connection closes in two steps: it, and then the one below
        await asyncio.sleep(0)


class Server:
    """Accepts connections, and handles each in a task. All end with it, also those whose data nobody reads.

    asyncio has tasks of its own for coroutines, and prints a traceback for each that is cancelled.
    """

    def __init__(self, handle: Callable[[Reader, Writer], Coroutine[Any, Any, None]]) -> None:
        self._handle = handle
        self._tasks: set[asyncio.Task[None]] = set()
        # A transport outlives the task that closes it, until all is sent; while it is open the loop refers to it.
        self._transports: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()
        self._server: asyncio.Server | None = None

    async def open(
        self, host: str, port: int, limit: int, context: ssl.SSLContext | None = None, handshake: float | None = None
    ) -> tuple[str, int]:
        """Listen, and return the address; port 0 means any free one."""
        self._server = await asyncio.start_server(
            self._connected, host, port, limit=limit, ssl=context, ssl_handshake_timeout=handshake
        )
        return address_of(self._server)

    def _connected(self, reader: Reader, writer: Writer) -> None:
        if self._server is None:
            writer.transport.abort()
            return
        self._transports.add(writer.transport)
        task = asyncio.create_task(self._handle(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await stop_listening(server)
        for task in self._tasks:
            task.cancel()
        for transport in tuple(self._transports):
            transport.abort()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=LEAVE_SECONDS)


async def stop_listening(server: asyncio.Server) -> None:
    """Close a server; connections that it has just accepted are made before, or asyncio would never close them."""
    for one in server.sockets:
        asyncio.get_running_loop().remove_reader(one.fileno())
    for _ in range(3):
        await asyncio.sleep(0)
    server.close()


async def until_none(left: Callable[[], object]) -> None:
    """Wait until there is nothing left, at most for LEAVE_SECONDS."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LEAVE_SECONDS):
            while left():
                await asyncio.sleep(0.001)


def address_of(server: asyncio.Server) -> tuple[str, int]:
    host, port = server.sockets[0].getsockname()[:2]
    return host, port


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

    def close(self) -> None:
        assert self.transport is not None
        self.transport.abort()

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
            names, result = hello[at + 6 : at + 4 + length], []
            while names:
                result.append(names[1 : 1 + names[0]])
                names = names[1 + names[0] :]
            return result
        at += 4 + length
    return []
