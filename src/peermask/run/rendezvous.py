"""Rendezvous: ranks introduce themselves in torch's TCP store, connect with rank 0, and try to reach each other."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from peermask.errors import LostRankError, RunError
from peermask.run.rank_control import Control, Member, Place, first_line

POLL_S = 0.1
CONNECT_S = 5.0  # to reach an address in the same network
ANSWER_S = 60.0  # for a rank that is connected
LINE_BYTES = 16  # more than the longest number of a rank
INTERFACE = "GLOO_SOCKET_IFNAME"  # gloo's own variable


@dataclass
class Waiting:
    """How long a rank waits for the others, and what ends it sooner."""

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
        time.sleep(POLL_S)


@dataclass(frozen=True)
class Meeting:
    store: Store
    control: Control
    listener: socket.socket  # that the others try to reach
    server: TCPStore | None  # the store ends with this object


def meet(place: Place, device: str, nccl: bool, waiting: Waiting, listener: socket.socket | None = None) -> Meeting:
    """Wait for all ranks."""
    server = _serve(place, listener) if place.rank == 0 and place.store_owner == "rank 0" else None
    client, address, store_address = _connect_store(place, waiting, ours=server is not None)
    store = PrefixStore(f"peermask/{place.restarts}", client)  # torchrun has one store for all attempts
    with ExitStack() as stack:
        here = place.local_size == place.size and place.address == "127.0.0.1"
        listener = stack.enter_context(listen("127.0.0.1" if here else "", backlog=2 * place.size))
        port, tried = listener.getsockname()[1], INTERFACE not in os.environ
        own = Member(place.rank, socket.gethostname(), os.getpid(), device, nccl, address, store_address, port, tried)
        try:
            members = _introduce(store, place, own, waiting)
            if place.rank == 0:
                peers = _accept_ranks(place, listener, waiting, stack)
            else:
                where = place.address, members[0].port
                peers = {0: stack.enter_context(socket.create_connection(where, timeout=CONNECT_S))}
                peers[0].sendall(f"{place.rank}\n".encode())
            control = Control(place.rank, members, peers, waiting.fate)
        except (RuntimeError, OSError, ValueError) as error:
            text = f"rank {place.rank} lost the rendezvous {_shown(place)} before the start: {first_line(error)}"
            raise LostRankError(f"{text}; start again") from None
        stack.pop_all()
        return Meeting(store, control, listener, server)


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
    interface = os.environ.get(INTERFACE, "")
    if interface and interface not in [name for _, name in socket.if_nameindex()]:
        raise RunError(f"{INTERFACE} = {interface!r}: this host has no such network interface; `ip addr` lists them")
    seen = [member.store_address for member in members if not member.on_loopback]
    taken = [replace(member, address=seen[0]) if seen and member.on_loopback else member for member in members]
    for other in {(member.host, member.address): member for member in taken if member.is_tried}.values():
        try:
            socket.create_connection((other.address, other.port), timeout=CONNECT_S).close()
        except OSError as error:
            raise RunError(
                f"rank {own.rank} on {own.host}, which took the address {taken[own.rank].address}, does not reach "
                f"rank {other.rank} on {other.host}, which took {other.address} ({error.strerror or error}); set "
                f"MASTER_ADDR to an address of rank 0 that all hosts reach, and {INTERFACE} to that network's interface"
            ) from None
    return "" if interface else taken[own.rank].address


def _serve(place: Place, listener: socket.socket | None) -> TCPStore:
    try:
        listener = listener or listen(port=place.port)
    except OSError as error:
        raise RunError(
            f"rank 0 cannot open the rendezvous {_shown(place)}: {error.strerror}; choose another MASTER_PORT"
        ) from None
    descriptor: Any = {"master_listen_fd": listener.detach()}
    return TCPStore("127.0.0.1", place.port, place.size, is_master=True, wait_for_workers=False, **descriptor)


def _connect_store(place: Place, waiting: Waiting, *, ours: bool) -> tuple[TCPStore, str, str]:
    """The store, and both addresses of the connection."""
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
        problem = f"rank {place.rank} did not reach rank 0 at {_shown(place)} LIMIT ({reason}); start rank 0 there,"
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
    listener.settimeout(POLL_S)
    while missing := [rank for rank in range(1, place.size) if rank not in peers]:
        try:
            peer = stack.enter_context(listener.accept()[0])
        except TimeoutError:
            waiting.check(place, missing, _absence(place, missing))
            continue
        peer.settimeout(ANSWER_S)
        with suppress(ValueError, OSError):  # a rank that only tries to reach this one, or a stranger
            peers[int(peer.makefile("rb", buffering=0).readline(LINE_BYTES))] = peer
    return peers


def _absence(place: Place, missing: list[int]) -> str:
    absent = ", ".join(map(str, missing[:8])) + (" and more" if len(missing) > 8 else "")
    problem = f"{len(missing)} of {place.size} ranks did not connect to {_shown(place)} LIMIT: {absent};"
    return problem + " start them,"


def _shown(place: Place) -> str:
    return f"[{place.address}]:{place.port}" if ":" in place.address else f"{place.address}:{place.port}"
