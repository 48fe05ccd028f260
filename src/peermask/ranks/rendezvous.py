"""How ranks meet: at a store in one process, at an address that all know, within a time limit."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from peermask.errors import RunError
from peermask.ranks.place import Place
from peermask.ranks.watch import RankInfo

LOOK = 0.1  # seconds between two looks
SIOCGIFADDR = 0x8915  # asks Linux for the address of an interface


@dataclass(frozen=True)
class Meeting:
    store: Store  # for the ranks' own use
    spare: Store  # the same store by another connection, for a thread that must never wait for the first
    members: list[RankInfo]
    told: list[dict[str, Any]]  # what each rank says of itself
    keeper: TCPStore  # the store lives in this process, or this is how it is reached; it ends with this object


def meet(
    place: Place,
    about: dict[str, Any],
    limit: float,
    should_stop: Callable[[], bool] = lambda: False,
    fate: Callable[[int], str | None] = lambda _: None,
    listener: socket.socket | None = None,
) -> Meeting:
    """Register this rank, and wait for all others."""
    until = time.monotonic() + limit
    keeper = _keep(place, listener) if place.keeps_store else _reach(place, until, limit, should_stop)
    address = _own_address(place)
    _name_interface(address)
    attempt = f"peermask/{place.restarts}"  # torchrun keeps one store for all attempts
    store = PrefixStore(attempt, keeper)
    host = socket.gethostname() if address.startswith("127.") else f"{socket.gethostname()} at {address}"
    store.set(f"sign/{place.rank}", json.dumps({"beat": 0, "farewell": None}))
    store.set(f"here/{place.rank}", json.dumps({"host": host, "process": os.getpid(), **about}))
    _await_all(store, place, until, limit, should_stop, fate)
    told = [json.loads(store.get(f"here/{rank}")) for rank in range(place.size)]
    members = [RankInfo(rank, one["host"], one["process"]) for rank, one in enumerate(told)]
    spare = TCPStore(place.address, place.port, wait_for_workers=False)
    return Meeting(store, PrefixStore(attempt, spare), members, told, keeper)


def listen_here() -> tuple[socket.socket, int]:
    """A port that only this machine reaches, for ranks that are all on it."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, listener.getsockname()[1]


def _keep(place: Place, listener: socket.socket | None) -> TCPStore:
    options: dict[str, Any] = {} if listener is None else {"master_listen_fd": listener.detach()}
    try:
        return TCPStore(place.address, place.port, place.size, is_master=True, wait_for_workers=False, **options)
    except RuntimeError as error:
        raise RunError(
            f"rank 0 cannot open the rendezvous {place.address}:{place.port}: {str(error).splitlines()[0]}; "
            "give another MASTER_ADDR or MASTER_PORT"
        ) from None


def _reach(place: Place, until: float, limit: float, should_stop: Callable[[], bool]) -> TCPStore:
    where, reason = f"{place.address}:{place.port}", "nobody answers"
    while not should_stop():
        try:
            socket.create_connection((place.address, place.port), timeout=2).close()
            left = max(1.0, until - time.monotonic())
            return TCPStore(place.address, place.port, timeout=timedelta(seconds=left), wait_for_workers=False)
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        if time.monotonic() > until:
            raise RunError(
                f"rank {place.rank} did not reach rank 0 at {where} within {limit:g} s ({reason}); start rank 0 "
                "there, check MASTER_ADDR and MASTER_PORT, or wait longer with --wait"
            )
        time.sleep(LOOK)
    raise KeyboardInterrupt


def _await_all(
    store: Store,
    place: Place,
    until: float,
    limit: float,
    should_stop: Callable[[], bool],
    fate: Callable[[int], str | None],
) -> None:
    missing = list(range(place.size))
    while missing := [rank for rank in missing if not store.check([f"here/{rank}"])]:
        if should_stop():
            raise KeyboardInterrupt
        for rank in missing:
            if (became := fate(rank)) is not None:
                raise RunError(f"rank {rank} {became} before the start")
        if time.monotonic() > until:
            absent = ", ".join(map(str, missing[:8])) + (" and more" if len(missing) > 8 else "")
            raise RunError(
                f"{len(missing)} of {place.size} ranks did not connect to {place.address}:{place.port} within "
                f"{limit:g} s: {absent}; start them, or wait longer with --wait"
            )
        time.sleep(LOOK)


def _own_address(place: Place) -> str:
    """Of the interface that leads to the meeting point; nothing is sent to find it out."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((place.address, place.port or 1))
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def _name_interface(address: str) -> None:
    """Tell gloo which interface the others reach: it would take the one that the host's name leads to."""
    for _, name in socket.if_nameindex():
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            request = struct.pack("256s", name.encode())
            if socket.inet_ntoa(fcntl.ioctl(asked.fileno(), SIOCGIFADDR, request)[20:24]) == address:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
                return
