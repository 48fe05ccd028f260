"""A read-only HTTP server of a few pages, such as metrics or a report. On loopback it answers to local names only.

Every connection has a thread, SECONDS for each step, and LIMIT_SECONDS in all. If there are more than CONNECTIONS, the
oldest is closed: slow clients keep nobody out.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

SECONDS = 5.0
LIMIT_SECONDS = 300.0  # a page of many runs takes a while to make
CONNECTIONS = 16
TEXT = "text/plain; charset=utf-8"

Answer = tuple[int, str, bytes]  # status, content type, body
Pages = Mapping[str, Callable[[], Answer]]


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "peermask", ""

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.step_seconds)

    def do_GET(self) -> None:
        host, page = self.headers.get("Host", ""), self.server.pages.get(self.path.partition("?")[0])
        # A web page elsewhere may point its host name at this machine (DNS rebinding).
        if self.server.is_local and host and not is_loopback(re.sub(r":\d+$", "", host).strip("[]")):
            status, kind, body = 403, TEXT, b"unknown host\n"
        elif page is None:
            status, kind, body = 404, TEXT, f"not found; pages: {', '.join(self.server.pages)}\n".encode()
        else:
            status, kind, body = page()
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        if status == 200 and self.headers.get("If-None-Match") == tag:
            status, body = 304, b""
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), ("ETag", tag),
                            ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent: no access log."""


class PageServer(ThreadingTCPServer):
    """Is bound by its constructor, which raises an OSError or OverflowError; port 0 means any free one."""

    daemon_threads = allow_reuse_address = True
    request_queue_size = 4 * CONNECTIONS  # a shorter queue overflows if many connect at once, and they wait for seconds

    def __init__(
        self, host: str, port: int, pages: Pages, step_seconds: float = SECONDS, limit_seconds: float = LIMIT_SECONDS
    ) -> None:
        self.pages, self.is_local = pages, is_loopback(host)
        self.step_seconds, self.limit_seconds = step_seconds, limit_seconds
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._open: dict[Any, float] = {}  # connections and when they began, the oldest first
        self._lock = threading.Lock()
        super().__init__((host, port), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        host = str(self.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = time.monotonic()
        self.service_actions()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close connections that are too many or too old; their threads then end. Called before each, and regularly."""
        with self._lock:
            surplus, earliest = len(self._open) - CONNECTIONS, time.monotonic() - self.limit_seconds
            for number, (request, began) in enumerate(list(self._open.items())):
                if number < surplus or began < earliest:
                    del self._open[request]
                    with suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # the client has gone
            super().handle_error(request, client_address)


@contextmanager
def serve_pages(server: PageServer) -> Iterator[PageServer]:
    """Serve in another thread until the block ends."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="pages", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
