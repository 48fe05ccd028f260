"""An agent's side of a relay: connections that wait there to be dialled, and local ports that lead through it.

Connections to a local port are forwarded to one agent through the relay. The agents' TLS is end to end: the relay and
its clients only forward bytes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from peermask.fleet.credentials import Credentials, name_of, tls_context
from peermask.fleet.environment import Line
from peermask.fleet.fleet import Fleet, split_address
from peermask.fleet.relay import (
    AGENT,
    BUFFER_BYTES,
    DIAL,
    GO,
    NAME,
    PROTOCOL,
    READY,
    REQUEST_SECONDS,
    WAIT,
    pump,
)
from peermask.fleet.sockets import Reader, Server, Writer, keep_alive, loop_in_thread, run_in

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
