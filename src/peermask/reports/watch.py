"""A report that is served while its run is in progress: read-only, and on loopback by default."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peermask.errors import RunError
from peermask.page_server import PageServer
from peermask.reports.page import as_json, gather, open_runs, render, title_of
from peermask.store.folder import RunFolder


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

    def data(self) -> bytes:
        """The data as JSON."""
        with self._lock:
            seen = self._files()
            if seen != self._seen:
                try:
                    self._data = self._json(gather(self.paths, waiting=True))
                    self._seen = seen
                except (RunError, ValueError, TypeError, KeyError):
                    pass  # a run that has just begun, or a row half written: what was known stays, and is asked again
            return self._data

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


def make_server(paths: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> PageServer:
    """A server that is bound and not yet serving; port 0 takes any that is free."""
    _check_watchable(paths)
    report = ReportData(paths)
    pages = {
        "/": lambda: (200, "text/html; charset=utf-8", report.page()),
        "/data.json": lambda: (200, "application/json", report.data()),
    }
    try:
        return PageServer(host, port, pages)
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
            RunFolder(path).check_run()
    if all((path / "config.toml").exists() for path in paths):
        open_runs(paths, waiting=True)
