"""A relay for agents that cannot be dialled: it joins connections, and can neither read nor forge what passes.

Agents behind routers keep connections to it that wait to be dialled; a neighbour asks for one of them, and from then on
bytes go both ways. What they carry is the agents' own mutual TLS, of which the relay has no key: it sees which agents
connect, when, and how much they send. Only agents of the fleet and its operators are let in, agents only to their
neighbours: it is no open proxy. A gate limits clients that have shown no certificate yet.

    relay    R                 it has looked at the certificate
    agent    W                 wait to be dialled
             D | agent (4)     dial that agent
    relay    G                 joined: the rest is the agents'
             N                 that agent is not waiting; try again
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from peermask.node.credentials import Credentials
from peermask.node.desk import OPERATOR, name_of, tls_context
from peermask.node.fleet import Fleet
from peermask.node.gate import open_gate

PROTOCOL = "peermask-relay/1"
NAME = "relay"  # in its certificate
READY, WAIT, DIAL, GO, NOBODY = b"R", b"W", b"D", b"G", b"N"
AGENT = struct.Struct(">I")
SECONDS = 10.0  # to say what one wants
IDLE = 60.0  # seconds without a byte in either direction; agents say something every second
EACH = 64  # connections of one name
WAITERS = 32  # of them that wait: more are left over from before the agent's network was cut
DOORS = 16  # handshakes at once
PART = 2**16

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter


@dataclass
class _Waiting:
    reader: Reader
    writer: Writer
    dialled: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)  # only the dialling end reads here from now on
    over: asyncio.Event = field(default_factory=asyncio.Event)  # the dialling end is done


class Relay:
    """Everything runs in one event loop."""

    def __init__(self, fleet: Fleet, credentials: Credentials) -> None:
        self.fleet, self.credentials = fleet, credentials
        self._waiting: dict[int, list[_Waiting]] = defaultdict(list)
        self._here: Counter[str] = Counter()
        self._writers: dict[Writer, str] = {}  # and whose they are
        self._server: asyncio.Server | None = None

    async def open(self) -> tuple[str, int]:
        context = tls_context(ssl.PROTOCOL_TLS_SERVER, self.credentials, PROTOCOL)
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, limit=PART, ssl=context, ssl_handshake_timeout=SECONDS
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        while self._writers:
            for writer in tuple(self._writers):
                writer.transport.abort()
            await asyncio.sleep(0.01)

    async def follow(self, fleet: Fleet) -> None:
        """Go by a later roster: who is no longer of the fleet is out at once."""
        self.fleet = fleet
        for writer, name in self._writers.items():
            if not self._lets_in(name):
                writer.transport.abort()

    @property
    def agents(self) -> dict[str, int]:
        return {member.name: member.agent for member in self.fleet.agents}

    def _lets_in(self, name: str) -> bool:
        if OPERATOR.fullmatch(name):
            return name.removeprefix("operator-") not in self.fleet.revoked_operators
        return name in self.agents

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        name = name_of(writer.get_extra_info("peercert"))
        self._here[name] += 1
        self._writers[writer] = name
        try:
            if self._lets_in(name) and self._here[name] <= EACH:
                await self._hear(name, reader, writer)
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._here[name] -= 1
            del self._writers[writer]
            writer.close()

    async def _hear(self, name: str, reader: Reader, writer: Writer) -> None:
        async with asyncio.timeout(SECONDS):
            writer.write(READY)
            wish = await reader.readexactly(1)
            (wanted,) = AGENT.unpack(await reader.readexactly(AGENT.size)) if wish == DIAL else (None,)
        agent = self.agents.get(name)
        if wish == WAIT and agent is not None:
            await self._wait(agent, _Waiting(reader, writer))
        elif wish == DIAL and (agent is None or wanted in self.fleet.neighbours(agent)):
            await self._join(self._waiting[wanted], reader, writer)

    async def _wait(self, agent: int, one: _Waiting) -> None:
        """Until it is dialled and that is over, or until it leaves."""
        held = self._waiting[agent]
        held.append(one)
        if len(held) > WAITERS:
            held[0].writer.transport.abort()
        leaving, dialled = asyncio.create_task(one.reader.read(1)), asyncio.create_task(one.dialled.wait())
        try:
            await asyncio.wait({leaving, dialled}, return_when=asyncio.FIRST_COMPLETED)
            if not one.dialled.is_set():
                return
            leaving.cancel()  # nothing is lost: a waiting agent sends nothing
            await asyncio.gather(leaving, return_exceptions=True)
            one.stopped.set()
            await one.over.wait()
        finally:
            one.stopped.set()
            for task in (leaving, dialled):
                task.cancel()
            if one in held:
                held.remove(one)

    async def _join(self, held: list[_Waiting], reader: Reader, writer: Writer) -> None:
        if not held:
            writer.write(NOBODY)
            return
        other = held.pop()  # the newest is the likeliest to be there
        other.dialled.set()
        await other.stopped.wait()
        try:
            for one in (writer, other.writer):
                one.write(GO)
            await pump((reader, writer), (other.reader, other.writer))
        finally:
            other.over.set()


async def pump(one: tuple[Reader, Writer], other: tuple[Reader, Writer]) -> None:
    """Forward bytes both ways until an end closes, or is silent for long."""

    async def copy(reader: Reader, writer: Writer) -> None:
        with suppress(OSError):
            while data := await reader.read(PART):
                said.set()
                writer.write(data)
                await writer.drain()

    async def listen() -> None:
        with suppress(TimeoutError):
            while True:
                said.clear()
                async with asyncio.timeout(IDLE):
                    await said.wait()

    said = asyncio.Event()
    tasks = {asyncio.create_task(work) for work in (copy(one[0], other[1]), copy(other[0], one[1]), listen())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, writer in (one, other):
            writer.close()


@contextmanager
def open_relay(fleet: Fleet, credentials: Credentials, host: str, port: int) -> Iterator[Callable[[Fleet], None]]:
    """Serve until the block ends; an OSError where it cannot listen. Gives what makes it go by a later roster."""
    relay = Relay(fleet, credentials)
    with open_gate(host, port) as gate:
        inside = asyncio.run_coroutine_threadsafe(relay.open(), gate.loop).result()
        gate.lead_to([inside] * DOORS)

        def follow(later: Fleet) -> None:
            asyncio.run_coroutine_threadsafe(relay.follow(later), gate.loop).result()

        try:
            yield follow
        finally:
            asyncio.run_coroutine_threadsafe(relay.close(), gate.loop).result()
