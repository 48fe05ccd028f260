"""Real ranks: one process each over gloo, on the loopback interface or in network namespaces."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from machine import enter_namespace, forkserver, has_ipv6
from peermask.store.checkpoint import list_masks, load_masks
from peermask.store.folder import RunFolder
from peermask.store.table import read_rows
from waiting import PATIENCE, until


def rank_process(
    environment: dict[str, str],
    log: Path,
    folder: Path,
    namespace: str | None,
    begin: Callable[[], None] | None,
    work: Callable[..., None],
    arguments: Sequence[Any],
) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(folder)
    if namespace:
        enter_namespace(namespace)
    os.environ.update(environment)
    if begin is not None:
        begin()
    work(*arguments)


def peermask(*arguments: str) -> None:
    from peermask.cli.main import main

    main(list(arguments))


def assert_same(one: Path, other: Path) -> None:
    """All that two runs wrote, but for the time they took, and masks at an interruption of the first."""
    for name in ("metrics.csv", "traffic.csv"):
        ours, theirs = (read_rows(folder / name) for folder in (one, other))
        assert [{**row, "seconds": ""} for row in ours] == [{**row, "seconds": ""} for row in theirs]
    masks, expected = (list_masks(RunFolder(folder).masks) for folder in (one, other))
    assert set(expected) <= set(masks)
    weights = 64 * 12 + 12 * 10
    for number, path in expected.items():
        assert (load_masks(masks[number], weights) == load_masks(path, weights)).all()


class RankRun:
    """All ranks of one run. Use as a context manager: none outlives it."""

    def __init__(self, folder: Path, size: int, *, address: str = "127.0.0.1") -> None:
        self.folder, self.size, self.address = folder, size, address
        # Bound at all addresses, as rank 0 will be, and not listening: rank 0 can take the port, and nobody else can.
        self.port_holder = socket.socket(socket.AF_INET6 if has_ipv6() else socket.AF_INET)
        self.port_holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if has_ipv6():
            self.port_holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.port_holder.bind(("", 0))
        self.port = self.port_holder.getsockname()[1]
        self.processes: dict[int, ForkServerProcess] = {}

    def __enter__(self) -> RankRun:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()
        self.port_holder.close()

    def start(
        self,
        *arguments: Any,
        ranks: Sequence[int] | None = None,
        work: Callable[..., None] = peermask,
        begin: Callable[[], None] | None = None,
        folder: Path | None = None,
        namespace: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start all, or these, with `peermask ARGUMENTS` or other work."""
        for rank in range(self.size) if ranks is None else ranks:
            place = {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(self.size),
                "MASTER_ADDR": self.address,
                "MASTER_PORT": str(self.port),
                **(environment or {}),
            }
            given = (place, self.log(rank), folder or self.folder, namespace, begin, work, arguments)
            self.processes[rank] = forkserver().Process(target=rank_process, args=given)
            self.processes[rank].start()

    def log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}-{self.port}.log"

    def last_line(self, rank: int) -> str:
        return self.log(rank).read_text().splitlines()[-1]

    def lines(self) -> list[str]:
        """What all ranks printed that is an error."""
        texts = [self.log(rank).read_text() for rank in range(self.size) if self.log(rank).exists()]
        assert not any("Traceback" in text for text in texts), "\n".join(texts)
        return [line for text in texts for line in text.splitlines() if line.startswith("peermask: ")]

    def signal(self, rank: int, number: int) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def until(self, met: Callable[[], bool]) -> None:
        """Wait for a condition, while all ranks live."""

        def ended() -> bool:
            return any(process.exitcode is not None for process in self.processes.values())

        until(lambda: met() or ended())
        assert met(), f"a rank has ended: {self.lines()}"

    def join(self) -> list[int | None]:
        for process in self.processes.values():
            process.join(PATIENCE)
        return [process.exitcode for process in self.processes.values()]
