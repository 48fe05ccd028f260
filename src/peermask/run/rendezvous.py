"""Rendezvous of ranks: they meet in torch's TCP store, connect with rank 0, and try to reach each other.

The connection with rank 0 then detects failures: it closes when a process dies. Rank 0 passes on why a rank left, or
that one died; all leave with that cause. The kernel's keep-alive finds hosts that are cut off.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from peermask.errors import LostRankError, PeermaskError, RunError

if TYPE_CHECKING:  # the command line reads the environment of a rank, and prints some tables without torch
    from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

POLL_SECONDS = 0.1
CONNECT_SECONDS = 5.0  # to reach an address in the same network
ANSWER_SECONDS = 60.0  # for a rank that is connected
CAUSE_SECONDS = 60.0  # from a broken connection to its cause; keep-alive takes half of it
LEAVE_SECONDS = 15.0  # for a rank that waits for a device or a rank that is cut off
LINE_BYTES = 16  # more than the longest number of a rank
INTERFACE_KEY = "GLOO_SOCKET_IFNAME"  # gloo's own variable
KEEP_ALIVE_SECONDS = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}  # 10 s and 4 times 5 s


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

    @property
    def rendezvous(self) -> str:
        """Address and port of the rendezvous."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

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
    """Connection of a rank with the others, by which all learn why one left."""

    def __init__(
        self,
        rank: int,
        members: Sequence[Member],
        peers: Mapping[int, socket.socket],
        fate: Callable[[int], str | None],
        store: Store,
        listener: socket.socket,
        server: TCPStore | None,
    ) -> None:
        self.rank, self.members, self.peers, self.fate = rank, members, peers, fate
        self.store, self._listener = store, listener  # which the others try to reach
        self._server = server  # the store ends with this object
        self.remedy = "start it again"
        self.cause: Cause | None = None
        self._settled, self._lock = threading.Event(), threading.Lock()
        self._guard = threading.Timer(LEAVE_SECONDS, self._exit)
        self._guard.daemon = True
        for other, peer in peers.items():
            peer.settimeout(None)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # so that the kernel finds a host that is gone
            for name, value in KEEP_ALIVE_SECONDS.items():
                if hasattr(socket, name):  # not on every system
                    peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            threading.Thread(target=self._read, args=(other, peer), daemon=True).start()

    def check(self) -> None:
        """Wait a little, and raise the cause if there is one."""
        if self._settled.wait(0.02) and self.cause is not None:
            raise self.error(self.cause)

    def wait_for_cause(self, error: RuntimeError) -> LostRankError:
        """The cause of a broken connection."""
        self._settled.wait(CAUSE_SECONDS)
        if self.cause is not None:
            return self.error(self.cause)
        return LostRankError(f"the connection between the ranks broke ({first_line(error)}); {self.remedy}")

    def report(self, error: BaseException) -> Cause:
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
        self._listener.close()

    def prints(self, cause: Cause) -> bool:
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
        if self.prints(self.cause):
            print(f"peermask: {self.error(self.cause)}", file=sys.stderr, flush=True)
        os._exit(self.cause.code)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@dataclass
class Waiting:
    """Limit of a rank's wait for the others, and what ends it sooner."""

    limit_s: float = 300.0
    should_stop: Callable[[], bool] = lambda: False
    fate: Callable[[int], str | None] = lambda _: None  # how a rank ended that this process started, or was started by

    def __post_init__(self) -> None:
        self.until = time.monotonic() + self.limit_s

    def check(self, place: Place, missing: list[int], problem: str) -> None:
        """Wait a little for missing ranks, unless there is a reason not to."""
        if self.should_stop():
            raise KeyboardInterrupt
        for rank in missing:
            if (how := self.fate(rank)) is not None:
                if place.rank:
                    raise SystemExit(LostRankError.exit_code)  # the shell says how its parent ended
                raise RunError(f"rank {rank} {how} before the start")
        if time.monotonic() > self.until:
            limit = f"within {self.limit_s:g} s"
            raise RunError(f"{problem.replace('LIMIT', limit)} or wait longer with --wait")
        time.sleep(POLL_SECONDS)


def meet(place: Place, device: str, nccl: bool, waiting: Waiting, listener: socket.socket | None = None) -> Control:
    """Wait for all ranks."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    server = _serve(place, listener) if place.rank == 0 and place.store_owner == "rank 0" else None
    client, address, store_address = _connect_store(place, waiting, ours=server is not None)
    store = PrefixStore(f"peermask/{place.restarts}", client)  # torchrun has one store for all attempts
    with ExitStack() as stack:
        here = place.local_size == place.size and place.address == "127.0.0.1"
        listener = stack.enter_context(listen("127.0.0.1" if here else "", backlog=2 * place.size))
        port, tried = listener.getsockname()[1], INTERFACE_KEY not in os.environ
        own = Member(place.rank, socket.gethostname(), os.getpid(), device, nccl, address, store_address, port, tried)
        try:
            members = _introduce(store, place, own, waiting)
            if place.rank == 0:
                peers = _accept_ranks(place, listener, waiting, stack)
            else:
                where = place.address, members[0].port
                peers = {0: stack.enter_context(socket.create_connection(where, timeout=CONNECT_SECONDS))}
                peers[0].sendall(f"{place.rank}\n".encode())
            control = Control(place.rank, members, peers, waiting.fate, store, listener, server)
        except (RuntimeError, OSError, ValueError) as error:
            text = f"rank {place.rank} lost the rendezvous {place.rendezvous} before the start: {first_line(error)}"
            raise LostRankError(f"{text}; start again") from None
        stack.pop_all()
        return control


def listen(address: str = "", port: int = 0, backlog: int | None = None) -> socket.socket:
    """Listen at an IPv4 address, or at all of this host."""
    if not address and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
    return socket.create_server((address, port), backlog=backlog)


def choose_address(own: Member, members: Sequence[Member]) -> str:
    """The address for gloo, which would take that of the host's name: a loopback on many systems.

    It is that of the connection to the store. On the store's own host that may be a loopback address; if there are
    other hosts, it is then the one by which they reach the store. All ranks try whether they reach the others. Empty
    where the user chose an interface.
    """
    interface = os.environ.get(INTERFACE_KEY, "")
    if interface and interface not in [name for _, name in socket.if_nameindex()]:
        raise RunError(
            f"{INTERFACE_KEY} = {interface!r}: this host has no such network interface; `ip addr` lists them"
        )
    seen = [member.store_address for member in members if not member.on_loopback]
    taken = [replace(member, address=seen[0]) if seen and member.on_loopback else member for member in members]
    for other in {(member.host, member.address): member for member in taken if member.is_tried}.values():
        try:
            socket.create_connection((other.address, other.port), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise RunError(
                f"rank {own.rank} on {own.host}, which took the address {taken[own.rank].address}, does not reach "
                f"rank {other.rank} on {other.host}, which took {other.address} ({error.strerror or error}); set "
                f"MASTER_ADDR to an address of rank 0 that all hosts reach, and {INTERFACE_KEY} to its interface there"
            ) from None
    return "" if interface else taken[own.rank].address


def _serve(place: Place, listener: socket.socket | None) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        listener = listener or listen(port=place.port)
    except OSError as error:
        raise RunError(
            f"rank 0 cannot open the rendezvous {place.rendezvous}: {error.strerror}; choose another MASTER_PORT"
        ) from None
    descriptor: Any = {"master_listen_fd": listener.detach()}
    return TCPStore("127.0.0.1", place.port, place.size, is_master=True, wait_for_workers=False, **descriptor)


def _connect_store(place: Place, waiting: Waiting, *, ours: bool) -> tuple[TCPStore, str, str]:
    """The store, and both addresses of the connection."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    while True:
        try:
            with socket.create_connection((place.address, place.port), timeout=2) as probe:
                own, peer = (name[0].removeprefix("::ffff:") for name in (probe.getsockname(), probe.getpeername()))
            limit = timedelta(seconds=max(1.0, waiting.limit_s))
            return TCPStore(place.address, place.port, timeout=limit, wait_for_workers=False), own, peer
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or first_line(error)
        if ours:
            raise RunError(
                f"rank 0 does not reach itself at MASTER_ADDR = {place.address}, port {place.port} ({reason}); "
                "set MASTER_ADDR on all hosts to an address of the host of rank 0"
            )
        problem = f"rank {place.rank} did not reach rank 0 at {place.rendezvous} LIMIT ({reason}); start rank 0 there,"
        waiting.check(place, [0], problem + " check MASTER_ADDR and MASTER_PORT,")


def _introduce(store: Store, place: Place, own: Member, waiting: Waiting) -> list[Member]:
    """Wait until all ranks are in the store."""
    store.set(f"member/{place.rank}", json.dumps(asdict(own)))
    while missing := [rank for rank in range(place.size) if not store.check([f"member/{rank}"])]:
        waiting.check(place, missing if place.rank == 0 else [0], _absence(place, missing))
    return [Member(**json.loads(store.get(f"member/{rank}"))) for rank in range(place.size)]


def _accept_ranks(
    place: Place, listener: socket.socket, waiting: Waiting, stack: ExitStack
) -> dict[int, socket.socket]:
    peers: dict[int, socket.socket] = {}
    listener.settimeout(POLL_SECONDS)
    while missing := [rank for rank in range(1, place.size) if rank not in peers]:
        try:
            peer = stack.enter_context(listener.accept()[0])
        except TimeoutError:
            waiting.check(place, missing, _absence(place, missing))
            continue
        peer.settimeout(ANSWER_SECONDS)
        with suppress(ValueError, OSError):  # a rank that only tries to reach this one, or a stranger
            peers[int(peer.makefile("rb", buffering=0).readline(LINE_BYTES))] = peer
    return peers


def _absence(place: Place, missing: list[int]) -> str:
    absent = ", ".join(map(str, missing[:8])) + (" and more" if len(missing) > 8 else "")
    problem = f"{len(missing)} of {place.size} ranks did not connect to {place.rendezvous} LIMIT: {absent};"
    return problem + " start them,"
