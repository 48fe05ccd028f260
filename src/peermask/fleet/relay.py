"""A relay for agents that cannot be dialled: it joins connections, and can neither read nor forge their data.

Agents behind routers keep idle connections to it; a neighbour asks for one of them, and then bytes are forwarded both
ways. They are the agents' mutual TLS, of which the relay has no key: it sees which agents connect, when, and how much
they send. Only agents and operators of the fleet are admitted, and agents only reach their neighbours: it is not
an open proxy. A gate limits clients that have not shown a certificate yet.

    relay    R                 it has verified the certificate
    agent    W                 wait to be dialled
             D | agent (4)     dial that agent
    relay    G                 joined: from now on bytes are forwarded
             N                 that agent is not waiting; try again
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from peermask.fleet.credentials import OPERATOR, Credentials, name_of, tls_context, validity
from peermask.fleet.fleet import Fleet
from peermask.fleet.gate import open_gate
from peermask.fleet.roster import digest_of
from peermask.fleet.sockets import Reader, Server, Writer, run_in

PROTOCOL = "peermask-relay/1"
NAME = "relay"  # in its certificate
READY, WAIT, DIAL, GO, NOBODY = b"R", b"W", b"D", b"G", b"N"
AGENT = struct.Struct(">I")
REQUEST_SECONDS = 10.0  # for a client to send its request
IDLE_SECONDS = 60.0  # seconds without a byte in either direction; agents send something every second
HANDSHAKES = 16  # handshakes at the same time
BUFFER_BYTES = 2**16


@dataclass(frozen=True)
class RelayLimits:
    connections: int = 64  # of one name
    waiting: int = 32  # of them; older ones are left over from before a network failure


RELAY_LIMITS = RelayLimits()


@dataclass(frozen=True)
class RelayStatus:
    """The status of a relay at one moment; counts are since its process started."""

    connections: int  # at its port
    clients: int  # of them, by their certificates
    waiting_agents: int  # that can be dialled
    joined: int
    refused: int  # not admitted, or dialled in vain
    run: str
    roster: int
    roster_digest: str
    certificate_ends: float  # seconds since 1970


@dataclass
class _Waiting:
    reader: Reader
    writer: Writer
    dialled: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)  # from now on only the dialling end reads here
    over: asyncio.Event = field(default_factory=asyncio.Event)  # the dialling end is done


class Relay:
    """Everything runs in one event loop."""

    def __init__(self, fleet: Fleet, credentials: Credentials, limits: RelayLimits = RELAY_LIMITS) -> None:
        self.fleet, self.credentials, self.limits = fleet, credentials, limits
        self._waiting: dict[int, list[_Waiting]] = {}  # by agent
        self._here: Counter[str] = Counter()
        self._writers: dict[Writer, str] = {}  # and whose they are
        self._server = Server(self._serve)
        self._joined = self._refused = 0
        self._ends = validity(credentials)[1].timestamp()

    async def status(self, connections: int) -> RelayStatus:
        return RelayStatus(
            connections=connections,
            clients=len(self._writers),
            waiting_agents=sum(map(bool, self._waiting.values())),
            joined=self._joined,
            refused=self._refused,
            run=self.fleet.run,
            roster=self.fleet.serial,
            roster_digest=digest_of(self.fleet).hex(),
            certificate_ends=self._ends,
        )

    async def open(self) -> tuple[str, int]:
        context = tls_context(ssl.PROTOCOL_TLS_SERVER, self.credentials, PROTOCOL)
        return await self._server.open("127.0.0.1", 0, BUFFER_BYTES, context, REQUEST_SECONDS)

    async def close(self) -> None:
        await self._server.close()

    async def follow(self, fleet: Fleet) -> None:
        """Use a later roster, and close connections of agents and operators that are no longer in the fleet."""
        self.fleet = fleet
        for writer, name in self._writers.items():
            if not self._admits(name):
                writer.transport.abort()

    @property
    def agents(self) -> dict[str, int]:
        return {member.name: member.agent for member in self.fleet.agents}

    def _admits(self, name: str) -> bool:
        if OPERATOR.fullmatch(name):
            return name.removeprefix("operator-") not in self.fleet.revoked_operators
        return name in self.agents

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        name = name_of(writer.get_extra_info("peercert"))
        self._here[name] += 1
        self._writers[writer] = name
        try:
            if self._admits(name) and self._here[name] <= self.limits.connections:
                await self._handle(name, reader, writer)
            else:
                self._refused += 1
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._here[name] -= 1
            del self._writers[writer]
            writer.close()

    async def _handle(self, name: str, reader: Reader, writer: Writer) -> None:
        async with asyncio.timeout(REQUEST_SECONDS):
            writer.write(READY)
            wish = await reader.readexactly(1)
            (wanted,) = AGENT.unpack(await reader.readexactly(AGENT.size)) if wish == DIAL else (None,)
        agent = self.agents.get(name)
        if wish == WAIT and agent is not None:
            await self._wait(agent, _Waiting(reader, writer))
        elif wish == DIAL and (agent is None or wanted in self.fleet.neighbours(agent)):
            await self._join(self._waiting.get(wanted, []), reader, writer)
        else:
            self._refused += 1

    async def _wait(self, agent: int, one: _Waiting) -> None:
        """Wait until the agent is dialled and that connection ends, or until it disconnects."""
        connections = self._waiting.setdefault(agent, [])  # an agent of the fleet, not any number
        connections.append(one)
        if len(connections) > self.limits.waiting:
            connections[0].writer.transport.abort()
        leaving, dialled = asyncio.create_task(one.reader.read(1)), asyncio.create_task(one.dialled.wait())
        try:
            await asyncio.wait({leaving, dialled}, return_when=asyncio.FIRST_COMPLETED)
            if not one.dialled.is_set():
                return
            leaving.cancel()  # no data is lost: a waiting agent sends nothing
            await asyncio.gather(leaving, return_exceptions=True)
            one.stopped.set()
            await one.over.wait()
        finally:
            one.stopped.set()
            for task in (leaving, dialled):
                task.cancel()
            if one in connections:
                connections.remove(one)

    async def _join(self, connections: list[_Waiting], reader: Reader, writer: Writer) -> None:
        if not connections:
            self._refused += 1
            writer.write(NOBODY)
            return
        self._joined += 1
        other = connections.pop()  # the newest is the most likely to be alive
        other.dialled.set()
        await other.stopped.wait()
        try:
            for one in (writer, other.writer):
                one.write(GO)
            await pump((reader, writer), (other.reader, other.writer))
        finally:
            other.over.set()


async def pump(one: tuple[Reader, Writer], other: tuple[Reader, Writer]) -> None:
    """Forward bytes both ways until one end closes, or both send nothing for IDLE_SECONDS seconds."""

    async def copy(reader: Reader, writer: Writer) -> None:
        with suppress(OSError):
            while data := await reader.read(BUFFER_BYTES):
                said.set()
                writer.write(data)
                await writer.drain()

    async def listen() -> None:
        with suppress(TimeoutError):
            while True:
                said.clear()
                async with asyncio.timeout(IDLE_SECONDS):
                    await said.wait()

    said = asyncio.Event()
    tasks = {asyncio.create_task(work) for work in (copy(one[0], other[1]), copy(other[0], one[1]), listen())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:  # nobody waits until all is sent
        for _, writer in (one, other):
            writer.transport.abort()
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, writer in (one, other):
            writer.close()


@dataclass(frozen=True)
class OpenRelay:
    address: tuple[str, int]
    follow: Callable[[Fleet], None]  # makes it use a later roster
    status: Callable[[], RelayStatus]


@contextmanager
def open_relay(
    fleet: Fleet, credentials: Credentials, host: str, port: int, limits: RelayLimits = RELAY_LIMITS
) -> Iterator[OpenRelay]:
    """Serve until the block ends; an OSError if it cannot listen. Port 0 means any free port."""
    relay = Relay(fleet, credentials, limits)
    with open_gate(host, port) as gate:
        inside = run_in(gate.loop, relay.open())
        gate.lead_to([inside] * HANDSHAKES)

        def follow(later: Fleet) -> None:
            run_in(gate.loop, relay.follow(later))

        def status() -> RelayStatus:
            return run_in(gate.loop, relay.status(gate.connections))

        try:
            yield OpenRelay(gate.address, follow, status)
        finally:
            run_in(gate.loop, relay.close())
