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
import ipaddress
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from peermask.fleet.credentials import OPERATOR, Credentials, name_of, tls_context, validity
from peermask.fleet.environment import Line
from peermask.fleet.fleet import Fleet, split_address
from peermask.fleet.gate import open_gate
from peermask.fleet.roster import digest_of
from peermask.fleet.sockets import Reader, Server, Writer, keep_alive, loop_in_thread, run_in

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


# An agent's side of the relay: connections that wait there to be dialled, and local ports that lead through it.
#
# Connections to a local port are forwarded to one agent through the relay. The agents' TLS is end to end: the relay and
# its clients only forward bytes.

SPARE_CONNECTIONS = 2  # waiting connections in addition to one per neighbour: for operators and reconnects
MOST_CONNECTIONS = 24  # waiting connections; each that is dialled is replaced
RETRY_SECONDS = (0.2, 5.0)  # seconds before dialling the relay again: at first, at most
FAULTS = (OSError, asyncio.IncompleteReadError, TimeoutError, EOFError)
Address = tuple[str, int]


class RelayClient:
    """Everything runs in one event loop."""

    def __init__(self, address: str, credentials: Credentials, say: Callable[[str], None]) -> None:
        self.address, self.say = address, say
        self.context = tls_context(ssl.PROTOCOL_TLS_CLIENT, credentials, PROTOCOL)
        self.reached: bool | None = None  # whether the last attempt succeeded
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[Server] = []

    async def forward(self, agent: int) -> Address:
        """Open a local port that leads to an agent, and return its address."""

        async def through(reader: Reader, writer: Writer) -> None:
            with suppress(*FAULTS), closing(writer):
                link = await self._dial(DIAL + AGENT.pack(agent))
                with closing(link[1]):
                    async with asyncio.timeout(REQUEST_SECONDS):
                        answer = await link[0].readexactly(1)
                    if answer == GO:
                        await pump((reader, writer), link)

        server = Server(through)
        self._servers.append(server)
        return await server.open("127.0.0.1", 0, BUFFER_BYTES)

    async def wait(self, inside: Address, many: int) -> None:
        """Keep `many` connections at the relay; connections that arrive there are forwarded to `inside`."""
        for _ in range(many):
            self._start(self._wait(inside))

    async def close(self) -> None:
        for server in self._servers:
            await server.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait(self, inside: Address) -> None:
        pause = RETRY_SECONDS[0]
        while True:
            link = None
            try:
                link = await self._dial(WAIT)
                if await link[0].readexactly(1) == GO:
                    self._start(self._joined(link, inside))
                    pause, link = RETRY_SECONDS[0], None
                    continue
            except FAULTS:
                pass
            finally:  # also if the agent is stopped here
                if link is not None:
                    link[1].transport.abort()
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS[1])

    async def _joined(self, link: tuple[Reader, Writer], inside: Address) -> None:
        with suppress(OSError), closing(link[1]):
            await pump(link, await asyncio.open_connection(*inside, limit=BUFFER_BYTES))

    async def _dial(self, wish: bytes) -> tuple[Reader, Writer]:
        """A connection to the relay, after its greeting and our request."""
        host, port = split_address(self.address)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=self.context, server_hostname=host, limit=BUFFER_BYTES
                )
                try:
                    name = name_of(writer.get_extra_info("peercert"))
                    if name != NAME or await reader.readexactly(1) != READY:
                        raise ConnectionError(f"the certificate there is of {name}")
                except BaseException:
                    writer.transport.abort()
                    raise
        except FAULTS as error:
            self._log(False, str(error) or type(error).__name__)
            raise
        self._log(True)
        keep_alive(writer.get_extra_info("socket"))
        writer.write(wish)
        return reader, writer

    def _log(self, reached: bool, why: str = "") -> None:
        """Log a change."""
        if reached != self.reached and not (reached and self.reached is None):
            text = "can be reached again" if reached else f"cannot be reached ({why}); trying again"
            self.say(Line(f"relay {self.address} {text}", "relay", "info" if reached else "warning", reached=reached))
        self.reached = reached


@contextmanager
def open_relay_client(
    fleet: Fleet,
    credentials: Credentials | None,
    wanted: Collection[int],
    inside: str | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> Iterator[dict[int, Address]]:
    """Local ports that lead to relayed agents of `wanted`; `inside`: where this device listens, if it is relayed."""
    through = [agent for agent in wanted if fleet.member(agent).relayed]
    if fleet.relay is None or credentials is None or (not through and inside is None):
        yield {}
        return
    client = RelayClient(fleet.relay, credentials, say)
    with loop_in_thread("relay") as loop:
        try:
            if inside is not None:
                run_in(loop, client.wait(_dialled_at(inside), min(len(wanted) + SPARE_CONNECTIONS, MOST_CONNECTIONS)))
            yield {agent: run_in(loop, client.forward(agent)) for agent in through}
        finally:
            run_in(loop, client.close())


def _dialled_at(listens: str) -> Address:
    """The address at which a listening port is dialled from the same device."""
    host, port = split_address(listens)
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            host = "::1" if ":" in host else "127.0.0.1"
    return host, port
