"""Protects an agent's port from unknown clients: only TLS handshakes reach zenoh, a few at a time.

zenoh sleeps 0.1 s after every failed handshake and accepts no connection meanwhile. So the gate listens at the
agent's address, and zenoh only on loopback, at a few ports that each take one handshake at a time. A connection

    arrives       and has `hello` seconds to send a complete ClientHello; anything else closes it
    is ready      and waits for its turn
    is tried      connected to one of zenoh's ports, for `handshake` seconds, or `contested` if others wait
    is linked     once it has answered what zenoh sends after a successful handshake; then there are no limits

If more are ready than can be tried, addresses with the fewest connections come first, and of one address the newest
connection: a neighbour does not wait behind unknown clients. Nothing is decrypted; zenoh verifies certificates.

Operators ask for another protocol in their ClientHello (ALPN), and are forwarded to the operator server
(fleet/operator.py), under the same limits. They are never linked, so the limit of a handshake applies to the
whole connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from peermask.fleet.credentials import OPERATOR_PROTOCOL
from peermask.fleet.sockets import (
    Side,
    address_of,
    hello_length,
    keep_alive,
    loop_in_thread,
    protocols,
    run_in,
    stop_listening,
    until_none,
)

if TYPE_CHECKING:
    from peermask.fleet.operator import OperatorServer

BACKLOG_CONNECTIONS = 256  # connections that the system accepts before the gate does
STUCK_MS = 10_000  # a peer that has acknowledged nothing for this long is closed
Address = tuple[str, int]
MOST_OPERATORS = 4  # operators at the server at the same time


@dataclass(frozen=True)
class GateLimits:
    """What connections that are not linked may take: seconds, and how many there are."""

    hello: float = 5.0
    handshake: float = 10.0
    contested: float = 1.0  # of a handshake while others wait
    pending: int = 256


GATE_LIMITS = GateLimits()


class _Queue:
    """Ports of one kind, connections that wait for them, and those being tried."""

    def __init__(self) -> None:
        self.free: list[Address] = []
        self.ready: dict[_ClientSide, None] = {}
        self.tried: dict[_ClientSide, Address] = {}


class _ServerSide(Side):
    """To zenoh."""

    def __init__(self, open_: set[_ServerSide]) -> None:
        super().__init__()
        self.open = open_  # all of the gate

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.open.discard(self)

    def data_received(self, data: bytes) -> None:
        outside = cast("_ClientSide", self.other)
        outside.answered = True
        super().data_received(data)


class _ClientSide(Side):
    """To the client."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.address = ""
        self.lane = gate.links
        self.hello = bytearray()
        self.timer: asyncio.TimerHandle | None = None
        self.begun = 0.0  # when its handshake began
        self.answered = False  # zenoh sent last
        self.turns = 0  # answers to zenoh

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        opened = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STUCK_MS)
        keep_alive(opened)
        self.limit(self.gate.limits.hello)
        self.gate.arrived(self)

    def limit(self, seconds: float) -> None:
        """Close the connection unless this limit is replaced or removed in time."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.gate.loop.call_later(seconds, self.close)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._read_hello(data)
            return
        if self.answered:
            self.answered = False
            self.turns += 1
            # The first answer is its certificate; zenoh continues only if that is valid.
            if self.turns == 2 and self.lane is self.gate.links:
                self.gate.linked(self)
        super().data_received(data)

    def _read_hello(self, data: bytes) -> None:
        self.hello += data
        length = hello_length(bytes(self.hello[:6]))
        if length is None:
            self.close()
        elif len(self.hello) >= length:
            assert self.transport is not None
            self.transport.pause_reading()
            if OPERATOR_PROTOCOL.encode() in protocols(bytes(self.hello)):
                self.lane = self.gate.visits
            self.gate.ready(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.gate.left(self)


class Gate:
    """The gate of one agent; everything but `lead_to` runs in the thread of its event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: GateLimits = GATE_LIMITS) -> None:
        self.loop, self.limits = loop, limits
        self.address: Address = ("", 0)  # once it is open
        self.links, self.visits = _Queue(), _Queue()  # to zenoh's ports, and to the operator server
        self._pending: dict[_ClientSide, None] = {}  # not linked yet, the oldest first
        self._here: set[_ClientSide] = set()
        self._inside: set[_ServerSide] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._closing = False

    @property
    def connections(self) -> int:
        """How many are open, linked or not. May be read from any thread."""
        return len(self._here)

    def lead_to(self, inside: Sequence[Address]) -> None:
        """Forward to these ports from now on. May be called from any thread."""

        def begin() -> None:
            self.links.free.extend(inside)
            self._next(self.links)

        self.loop.call_soon_threadsafe(begin)

    async def open(self, host: str, port: int, operator_server: OperatorServer | None = None) -> None:
        self._server = await self.loop.create_server(lambda: _ClientSide(self), host, port, backlog=BACKLOG_CONNECTIONS)
        self.address = address_of(self._server)
        if operator_server is not None:
            self.visits.free.extend([await operator_server.open()] * MOST_OPERATORS)

    async def close(self) -> None:
        self._closing = True
        if self._server is not None:
            await stop_listening(self._server)
        for one in tuple(self._here):
            one.close()
        await until_none(lambda: self._here or self._tasks)
        for inside in tuple(self._inside):  # its data need not reach anybody any more
            inside.close()
        await until_none(lambda: self._inside)

    def arrived(self, one: _ClientSide) -> None:
        if self._closing:  # it was just being accepted
            one.close()
            return
        self._here.add(one)
        self._pending[one] = None
        if len(self._pending) > self.limits.pending:
            crowd = self._crowd()
            max(self._pending, key=lambda pending: crowd[pending.address]).close()  # the oldest of them

    def ready(self, one: _ClientSide) -> None:
        one.lane.ready[one] = None
        one.limit(self.limits.handshake)
        self._next(one.lane)

    def left(self, one: _ClientSide) -> None:
        self._here.discard(one)
        self.linked(one)

    def linked(self, one: _ClientSide) -> None:
        """Remove all limits of a connection, and free its port for the next."""
        for place in (self._pending, one.lane.ready):
            place.pop(one, None)
        if one in one.lane.tried:
            one.lane.free.append(one.lane.tried.pop(one))
        if one.timer is not None:
            one.timer.cancel()
        self._next(one.lane)

    def _crowd(self) -> Counter[str]:
        return Counter(one.address for one in self._pending)

    def _next(self, lane: _Queue) -> None:
        """Try ready connections, as many as there are free ports."""
        while lane.ready and lane.free:
            crowd = self._crowd()
            one = min(reversed(lane.ready), key=lambda ready: crowd[ready.address])
            del lane.ready[one]
            lane.tried[one] = inside = lane.free.pop(0)  # the one that has been free longest
            one.begun = self.loop.time()
            one.limit(self.limits.handshake)
            task = self.loop.create_task(self._join(one, inside))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if lane.ready:
            for one in lane.tried:
                one.limit(max(0.0, one.begun + self.limits.contested - self.loop.time()))

    async def _join(self, one: _ClientSide, address: Address) -> None:
        inside = _ServerSide(self._inside)
        inside.other = one
        try:
            await self.loop.create_connection(lambda: inside, *address)
        except OSError:  # zenoh is starting or closing
            one.close()
            return
        assert one.transport is not None
        assert inside.transport is not None
        if one.transport.is_closing():
            inside.transport.abort()
            return
        one.other = inside
        inside.transport.write(bytes(one.hello))
        one.hello.clear()
        one.transport.resume_reading()


@contextmanager
def open_gate(
    host: str,
    port: int,
    operator_server: OperatorServer | None = None,
    limits: GateLimits = GATE_LIMITS,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Iterator[Gate]:
    """Listen at an address, or any free port if that is 0; an OSError if it fails.

    `operator_server`: where operators are forwarded to; `loop`: what it runs in, and takes the time from.
    """
    with loop_in_thread("gate", loop) as loop:
        gate = Gate(loop, limits)
        try:
            run_in(loop, gate.open(host, port, operator_server))
            yield gate
        finally:
            run_in(loop, gate.close())
            if operator_server is not None:
                run_in(loop, operator_server.close())
