"""A report that is served while its run is in progress: read-only, and on loopback by default."""

from __future__ import annotations

import hashlib
import ipaddress
import threading
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from peermask.errors import RunError
from peermask.reports.page import as_json, gather, open_runs, render, title_of

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


class ReportData:
    """The data of some runs, gathered again only when a file of theirs has changed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self.title = title_of(paths)
        self._lock = threading.Lock()
        self._seen: frozenset[tuple[str, int, int]] | None = None
        self._data = self._json({"series": [], "runs": []})

    def page(self) -> bytes:
        return render({"series": [], "runs": []}, self.title, live=True).encode()

    def data(self) -> tuple[bytes, str]:
        """JSON and its tag."""
        with self._lock:
            seen = self._files()
            if seen != self._seen:
                try:
                    self._data = self._json(gather(self.paths, waiting=True))
                    self._seen = seen
                except (RunError, ValueError, TypeError, KeyError):
                    pass  # a run that has just begun, or a row half written: what was known stays, and is asked again
            return self._data, f'"{hashlib.sha256(self._data).hexdigest()[:16]}"'

    def _json(self, found: dict[str, Any]) -> bytes:
        return as_json({"title": self.title, "live": True, **found}).encode()

    def _files(self) -> frozenset[tuple[str, int, int]]:
        found = set()
        for root in self.paths:
            for path in root.rglob("*"):
                if path.suffix in (".csv", ".json", ".toml", ".npz"):
                    try:
                        about = path.stat()
                    except FileNotFoundError:
                        continue
                    found.add((str(path), about.st_mtime_ns, about.st_size))
        return frozenset(found)


class Handler(BaseHTTPRequestHandler):
    """Two addresses to read: the page and its data."""

    server_version, sys_version = "peermask", ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def __init__(self, watched: ReportData, names: frozenset[str], *arguments: object) -> None:
        self.watched, self.names = watched, names
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        # Another web page may point its own host name at this machine; only our names are answered.
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if self.names and host not in self.names:
            self._answer(403, b"unknown host\n", "text/plain")
        elif self.path == "/":
            self._answer(200, self.watched.page(), "text/html; charset=utf-8")
        elif self.path == "/data.json":
            data, tag = self.watched.data()
            if self.headers.get("If-None-Match") == tag:
                self._answer(304, b"", "application/json", tag)
            else:
                self._answer(200, data, "application/json", tag)
        else:
            self._answer(404, b"not here\n", "text/plain")

    def _answer(self, status: int, body: bytes, kind: str, tag: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if tag is not None:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent: no access log."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"


def make_server(paths: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> Server:
    """A server that is bound and not yet serving; port 0 takes any that is free."""
    _check_watchable(paths)
    names = frozenset(LOCAL_NAMES) if _is_loopback(host) else frozenset()
    try:
        return Server((host, port), partial(Handler, ReportData(paths), names))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(f"cannot serve on {host}:{port}: {reason}; give another --port or --host") from error


def _check_watchable(paths: Sequence[Path]) -> None:
    """Report permanent problems at once; that a run has just begun is not one."""
    for path in paths:
        if path.is_file():
            raise RunError(
                f"{path} is not a run folder; a fleet is watched with `peermask fleet status {path} --watch`"
            )
        if not any((path / name).exists() for name in ("config.toml", "compare.toml", "agents", "sweep.json")):
            raise RunError(f"{path} is not a run folder: it has no config.toml; start the run, then watch it")
    if all((path / "config.toml").exists() for path in paths):
        open_runs(paths, waiting=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
