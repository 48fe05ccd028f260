"""Rendezvous: ranks find rank 0 by torch's TCP store, introduce themselves, and try to reach each other."""

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
from peermask.run.rank_control import Control, Member, first_line
from peermask.run.rank_place import Place

POLL_S = 0.1
CONNECT_S = 5.0  # to reach an address in the same network
ANSWER_S = 60.0  # for a rank that is connected
LINE_BYTES = 1 << 20  # more than the longest message
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
        listener = stack.enter_context(_listen_for(place))
        port = 0 if INTERFACE in os.environ else listener.getsockname()[1]
        own = Member(place.rank, socket.gethostname(), os.getpid(), device, nccl, address, store_address, port)
        introduce = _gather_members if place.rank == 0 else _ask_rank_0
        try:
            control = introduce(store, place, own, waiting, stack)
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


def _listen_for(place: Place) -> socket.socket:
    """Listen for all ranks, on this host only if all are here."""
    here = place.local_size == place.size and place.address == "127.0.0.1"
    return listen("127.0.0.1" if here else "", backlog=2 * place.size)


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
    for other in {(member.host, member.address): member for member in taken if member.port}.values():
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


def _gather_members(store: Store, place: Place, own: Member, waiting: Waiting, stack: ExitStack) -> Control:
    """Rank 0: wait for the others, and tell all who they are."""
    members, peers = {0: own}, {}
    with _listen_for(place) as control:
        control.settimeout(POLL_S)
        store.set("control", str(control.getsockname()[1]))
        while len(members) < place.size:
            with suppress(TimeoutError, ValueError, TypeError):  # nobody yet, or a stranger
                peer = stack.enter_context(control.accept()[0])
                peer.settimeout(ANSWER_S)
                member = Member(**_read_line(peer))
                members[member.rank], peers[member.rank] = member, peer
                continue
            missing = [rank for rank in range(place.size) if rank not in members]
            absent = ", ".join(map(str, missing[:8])) + (" and more" if len(missing) > 8 else "")
            problem = f"{len(missing)} of {place.size} ranks did not connect to {_shown(place)} LIMIT: {absent};"
            waiting.check(place, missing, problem + " start them,")
    ordered = [members[rank] for rank in range(place.size)]
    for peer in peers.values():
        peer.sendall(json.dumps([asdict(member) for member in ordered]).encode() + b"\n")
    return Control(0, ordered, peers, waiting.fate)


def _ask_rank_0(store: Store, place: Place, own: Member, waiting: Waiting, stack: ExitStack) -> Control:
    """Other ranks: introduce themselves to rank 0, which says who the others are."""
    problem = f"the ranks did not meet at {_shown(place)} LIMIT; start all of them,"
    while not store.check(["control"]):
        waiting.check(place, [0], problem)
    where = place.address, int(store.get("control"))
    peer = stack.enter_context(socket.create_connection(where, timeout=CONNECT_S))
    peer.sendall(json.dumps(asdict(own)).encode() + b"\n")
    peer.settimeout(0.0)
    while True:
        with suppress(BlockingIOError):
            if peer.recv(1, socket.MSG_PEEK):
                break
            raise RunError(f"rank 0 left the rendezvous {_shown(place)} before all ranks had come")
        waiting.check(place, [0], problem)
    peer.settimeout(ANSWER_S)
    members = [Member(**member) for member in _read_line(peer)]
    return Control(place.rank, members, {0: peer}, waiting.fate)


def _read_line(peer: socket.socket) -> Any:
    """Read one message, and nothing of the next."""
    return json.loads(peer.makefile("rb", buffering=0).readline(LINE_BYTES))


def _shown(place: Place) -> str:
    return f"[{place.address}]:{place.port}" if ":" in place.address else f"{place.address}:{place.port}"
