"""Rank of this process among several, and failure detection between them.

Every rank has a TCP connection with rank 0, which closes when a process dies. Rank 0 passes on why a rank left, or that
one died; all leave with that cause. The kernel's keep-alive finds hosts that are cut off.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address

from peermask.errors import LostRankError, PeermaskError, RunError

CAUSE_LIMIT_S = 60.0  # from a broken connection to its cause; keep-alive takes half of it
LEAVE_LIMIT_S = 15.0  # for a rank that waits for a device or a rank that is cut off
KEEP_ALIVE_S = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}  # 10 s and 4 times 5 s


@dataclass(frozen=True)
class Place:
    """Place of a rank, as torchrun, a batch system or `--processes` set it in the environment."""

    rank: int
    size: int
    local_rank: int  # among the ranks of this host
    local_size: int
    address: str  # of the rendezvous
    port: int
    store_owner: str = "rank 0"  # the process that serves the rendezvous store
    restarts: int = 0  # how often torchrun has restarted the ranks
    max_restarts: int = 0

    def environment(self) -> dict[str, str]:
        """The variables that `rank_from_env` reads."""
        numbers = {"RANK": self.rank, "WORLD_SIZE": self.size, "LOCAL_RANK": self.local_rank}
        numbers |= {"LOCAL_WORLD_SIZE": self.local_size, "MASTER_PORT": self.port}
        return {"MASTER_ADDR": self.address, **{name: str(value) for name, value in numbers.items()}}


def rank_from_env(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Read the variables that torchrun sets; None for a process that is not a rank."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(environment):
        return None

    def number(name: str, default: int = 0) -> int:
        text = environment.get(name, str(default))
        if not text.isdecimal():
            raise RunError(f"the environment has {name} = {text!r}; it must be a whole number, as torchrun sets it")
        return int(text)

    rank, size = number("RANK"), number("WORLD_SIZE")
    if rank >= size:
        raise RunError(f"the environment has RANK = {rank} and WORLD_SIZE = {size}; ranks count from 0 to {size - 1}")
    return Place(
        rank,
        size,
        number("LOCAL_RANK"),
        number("LOCAL_WORLD_SIZE", 1),
        environment["MASTER_ADDR"].strip("[]"),  # an IPv6 address may be in brackets
        number("MASTER_PORT"),
        "torchrun" if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else "rank 0",
        number("TORCHELASTIC_RESTART_COUNT"),
        number("TORCHELASTIC_MAX_RESTARTS"),
    )


@dataclass(frozen=True)
class Member:
    """One rank, as it introduced itself."""

    rank: int
    host: str
    process: int
    device: str
    nccl: bool
    address: str  # in its connection to the store
    store_address: str  # of the store in that connection
    port: int  # where it listens until all have reached each other
    is_tried: bool = True  # whether others try to reach it there

    @property
    def on_loopback(self) -> bool:
        return ip_address(self.address.partition("%")[0]).is_loopback

    def __str__(self) -> str:
        where = "" if self.on_loopback else f" at {self.address}"
        return f"rank {self.rank} (process {self.process} on {self.host}{where})"


@dataclass(frozen=True)
class Cause:
    """Why all ranks leave: line and exit code of one of them, and the rank that died, if one did."""

    rank: int
    code: int
    text: str
    dead: list[int] = field(default_factory=list)


class Control:
    def __init__(
        self,
        rank: int,
        members: Sequence[Member],
        peers: Mapping[int, socket.socket],
        fate: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        self.rank, self.members, self.peers, self.fate = rank, members, peers, fate
        self.remedy = "start it again"
        self.cause: Cause | None = None
        self._settled, self._lock = threading.Event(), threading.Lock()
        self._guard = threading.Timer(LEAVE_LIMIT_S, self._exit)
        self._guard.daemon = True
        for other, peer in peers.items():
            keep_alive(peer)
            threading.Thread(target=self._read, args=(other, peer), daemon=True).start()

    def check(self) -> None:
        """Wait a little, and raise the cause if there is one."""
        if self._settled.wait(0.02) and self.cause is not None:
            raise self.error(self.cause)

    def lost(self, error: RuntimeError) -> LostRankError:
        """The cause of a broken connection."""
        self._settled.wait(CAUSE_LIMIT_S)
        if self.cause is not None:
            return self.error(self.cause)
        return LostRankError(f"the connection between the ranks broke ({first_line(error)}); {self.remedy}")

    def tell(self, error: BaseException) -> Cause:
        """Tell the others why this rank leaves; the cause that all leave with."""
        code, text = 1, f"{self.members[self.rank]} failed: {type(error).__name__}: {error}"
        if isinstance(error, PeermaskError):
            code, text = error.exit_code, str(error)
        elif isinstance(error, KeyboardInterrupt):
            code, text = 130, f"{self.members[self.rank]} was interrupted; {self.remedy}"
        return self._settle(Cause(self.rank, code, text))

    def close(self) -> None:
        self._guard.cancel()
        self._send(b"bye\n")
        for peer in self.peers.values():
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
            peer.close()

    def speaks(self, cause: Cause) -> bool:
        """Whether this rank prints the line: the lowest of its host that is left."""
        own = self.members[self.rank]
        here = [other.rank for other in self.members if (other.host, other.address) == (own.host, own.address)]
        return self.rank == min((rank for rank in here if rank not in cause.dead), default=self.rank)

    def error(self, cause: Cause) -> LostRankError:
        who = "" if cause.dead or cause.rank in (0, self.rank) else f"{self.members[cause.rank]}: "
        return LostRankError(who + cause.text, cause.code)

    def _read(self, other: int, peer: socket.socket) -> None:
        how = "died"
        try:
            for line in peer.makefile("rb"):
                if line == b"bye\n":
                    return
                self._settle(Cause(**json.loads(line)))
        except TimeoutError:
            how = "is cut off"
        except (OSError, ValueError, TypeError):
            pass
        text = f"{self.members[other]} {self.fate(other) or how}; what was saved is whole: {self.remedy}"
        self._settle(Cause(self.rank, LostRankError.exit_code, text, [other]))

    def _settle(self, cause: Cause) -> Cause:
        """Set the cause unless there is one, and pass it on."""
        with self._lock:
            if self.cause is None:
                self.cause = cause
                self._send(json.dumps(asdict(cause)).encode() + b"\n")
                self._settled.set()
                self._guard.start()
            return self.cause

    def _send(self, line: bytes) -> None:
        for peer in self.peers.values():
            with suppress(OSError):
                peer.sendall(line)

    def _exit(self) -> None:
        """End a process that hangs."""
        assert self.cause is not None
        if self.speaks(self.cause):
            print(f"peermask: {self.error(self.cause)}", file=sys.stderr, flush=True)
        os._exit(self.cause.code)


def keep_alive(peer: socket.socket) -> None:
    """Let the kernel ask whether the other host is there."""
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE_S.items():
        if hasattr(socket, name):  # not on every system
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
