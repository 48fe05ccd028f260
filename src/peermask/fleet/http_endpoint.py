"""The HTTP server for `GET /metrics` and `GET /healthz`, on loopback unless configured otherwise.

One thread with its own event loop. A connection has `seconds` for everything. There are at most CONNECTIONS; if there
are more, the oldest is closed, so slow clients cannot block the agent or other clients.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from peermask.errors import NodeError
from peermask.fleet.health import Health
from peermask.fleet.sockets import Server, loop_in_thread, run_in

SECONDS = 5.0
CONNECTIONS = 16
LARGEST_HEAD = 8192
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
           503: "Service Unavailable"}  # fmt: skip
TEXT = "text/plain; charset=utf-8"
METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"

Answer = tuple[int, str, bytes]  # status, content type, body
Page = Callable[[], Answer]


class Endpoint:
    def __init__(self, pages: dict[str, Page], local: bool, seconds: float = SECONDS) -> None:
        """`local`: only requests that name this machine by a local name are answered."""
        self.pages, self.local, self.seconds = pages, local, seconds
        self.port = 0
        self._open: dict[asyncio.StreamWriter, None] = {}  # the oldest first

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        writer.transport.set_write_buffer_limits(0)  # so that drain waits until all is sent
        try:
            async with asyncio.timeout(self.seconds):
                status, kind, body = self._answer(await reader.readuntil(b"\r\n\r\n"))
                head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                quiet = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
                writer.write((head + quiet).encode() + body)
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _answer(self, head: bytes) -> Answer:
        first, *rest = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        names = [line.partition(":")[2].strip() for line in rest if line.lower().startswith("host:")]
        if len(words) != 3:
            return 400, TEXT, b"not HTTP\n"
        if words[0] != "GET":
            return 405, TEXT, b"read only\n"
        # A web page elsewhere may point its host name at this machine (DNS rebinding).
        if self.local and [name for name in names if (name.rpartition(":")[0] or name) not in LOCAL_NAMES]:
            return 403, TEXT, b"unknown host\n"
        page = self.pages.get(words[1].partition("?")[0])
        return page() if page is not None else (404, TEXT, f"not found; pages: {', '.join(self.pages)}\n".encode())


def status_pages(metrics: Callable[[], bytes], health: Callable[[], Health]) -> dict[str, Page]:
    """`/metrics`, and `/healthz`: 503 if failing. A degraded agent answers 200, since a restart does not help it."""

    def healthz() -> Answer:
        found = health()
        return 503 if found.state == "failing" else 200, TEXT, f"{found}\n".encode()

    return {"/metrics": lambda: (200, METRICS_TEXT, metrics()), "/healthz": healthz}


@contextmanager
def open_endpoint(
    host: str,
    port: int,
    pages: dict[str, Page],
    seconds: float = SECONDS,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Iterator[Endpoint]:
    """Serve until the block ends; port 0 means any free port."""
    endpoint = Endpoint(pages, is_loopback(host), seconds)
    server = Server(endpoint.serve)
    with loop_in_thread("metrics", loop) as loop:
        try:
            _, endpoint.port = run_in(loop, server.open(host, port, LARGEST_HEAD))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise NodeError(
                f"metrics cannot be served on {host}:{port}: {reason}; give another --metrics port or --metrics-host"
            ) from error
        try:
            yield endpoint
        finally:
            run_in(loop, server.close())


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
