"""A connection between two agents of which either end can be cut by itself, as links are lost one after the other."""

from __future__ import annotations

import asyncio
import threading


class End(asyncio.Protocol):
    """Of one connection, towards who dialled or who was dialled; what it reads, the other writes."""

    def __init__(self, cable: Cable) -> None:
        self.cable = cable
        self.transport: asyncio.Transport
        self.other: End | None = None

    def connection_made(self, transport):
        self.transport = transport
        self.cable.open.add(self)

    def connection_lost(self, exc):  # noqa: ARG002
        self.cable.open.discard(self)

    def data_received(self, data):
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.write(data)


class Caller(End):
    """Waits until the other side is dialled."""

    dialled: asyncio.Task[tuple[asyncio.Transport, End]]

    def connection_made(self, transport):
        super().connection_made(transport)
        if not self.cable.whole:
            self.cable.refused += 1
            transport.abort()
            return
        transport.pause_reading()
        self.cable.ends.append((self, called := End(self.cable)))
        dialled = self.cable.loop.create_task(
            self.cable.loop.create_connection(lambda: called, "127.0.0.1", self.cable.to)
        )
        dialled.add_done_callback(lambda done: self.joined(called, failed=done.exception() is not None))
        self.dialled = dialled  # or it might be forgotten

    def joined(self, called: End, *, failed: bool) -> None:
        if failed:
            self.transport.abort()
            return
        self.other, called.other = called, self
        if not self.transport.is_closing():
            self.transport.resume_reading()


class Cable:
    """Forwards a port of this machine to another. Use as a context manager."""

    def __init__(self, port: int, to: int) -> None:
        self.port, self.to, self.whole = port, to, True
        self.refused = 0  # how often somebody dialled in vain
        self.ends: list[tuple[Caller, End]] = []
        self.open: set[End] = set()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self):
        self.thread.start()
        self.server = self._call(self.loop.create_server(lambda: Caller(self), "127.0.0.1", self.port))
        return self

    def __exit__(self, *_):
        self._call(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _close(self) -> None:
        """Connections that are just being accepted or dialled are tasks, and open only after them."""
        self.whole = False
        self.server.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        while self.open:
            for end in list(self.open):
                end.transport.abort()
            await asyncio.sleep(0)  # until the loop has told all ends

    def cut(self, *, caller: bool = True, called: bool = True) -> None:
        """Nobody comes through any more; who is through is cut off at these ends, and the other ends hear nothing."""

        async def cut() -> None:
            self.whole = False
            for ends in self.ends:
                for end, wanted in zip(ends, (caller, called), strict=True):
                    if wanted and hasattr(end, "transport"):
                        end.transport.abort()

        self._call(cut())

    def mend(self) -> None:
        """Let others through again."""
        self.whole = True

    def _call(self, doing):
        return asyncio.run_coroutine_threadsafe(doing, self.loop).result(120)
