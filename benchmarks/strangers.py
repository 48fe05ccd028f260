"""Strangers without a certificate keep an agent's port busy: when does a restarted neighbour get through?

    python -m benchmarks.strangers [--wait 30] [--no-gate]

Two neighbours over mutual TLS on this machine. Strangers connect to the port of one of them, or of both, and connect
again as soon as they are let go. They say nothing, garbage, or a TLS client's first message, followed by nothing or by
garbage. After a while the second neighbour starts; printed is how long its link takes. `--no-gate`: as it would be
if the network layer listened at the ports itself (fleet/gate.py).
"""

from __future__ import annotations

import argparse
import os
import platform
import socket
import ssl
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.fleet import free_ports
from peermask.config.file import make_config
from peermask.fleet import zenoh_transport
from peermask.fleet.certificates import make_certificates
from peermask.fleet.credentials import check_credentials
from peermask.fleet.fleet import new_fleet, split_address
from peermask.fleet.sessions import session_settings
from peermask.fleet.zenoh_transport import open_zenoh

LEAD = 13.0  # seconds that strangers have before the neighbour comes: longer than a handshake may take


def client_hello() -> bytes:
    """What a TLS client begins with."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


CASES = (
    ("nobody", 0, b""),
    ("50 with garbage", 50, os.urandom(200)),
    ("100 silent", 100, b""),
    ("500 silent", 500, b""),
    ("100 with a hello", 100, client_hello()),
    ("100 with a hello and garbage", 100, client_hello() + os.urandom(200)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wait", type=float, default=30.0)
    parser.add_argument("--no-gate", action="store_true")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores; {'without' if options.no_gate else 'with'} gates")
    print(f"{'strangers':28s}  at one port  at both ports", flush=True)
    for name, count, words in CASES:
        took = [linked_after(options, count, words, ports) for ports in (1, 2)]
        shown = ["not" if seconds is None else f"{seconds:.1f} s" for seconds in took]
        print(f"{name:28s}  {shown[0]:>11}  {shown[1]:>13}", flush=True)


def linked_after(options: argparse.Namespace, count: int, words: bytes, ports: int) -> float | None:
    """Seconds; None: not within the wait."""
    fleet = new_fleet(make_config({"agents": 2, "graph": {"name": "path"}}), port=free_ports(2))
    over = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(fleet, Path(folder))
        settings = [
            session_settings(fleet, agent, check_credentials(fleet, Path(folder), agent), 2**20) for agent in (0, 1)
        ]
        threads = [
            threading.Thread(target=strangers, args=(split_address(fleet.member(agent).address), count, words, over))
            for agent in range(ports)
        ]
        try:
            if options.no_gate:
                zenoh_transport._open = zenoh_transport._session  # type: ignore[assignment]
            with open_zenoh(settings[0], 0, lambda *_: None) as first:
                for thread in threads:
                    thread.start()
                time.sleep(LEAD if count else 1.0)
                begun = time.monotonic()
                with open_zenoh(settings[1], 1, lambda *_: None):
                    while 1 not in first.alive() and time.monotonic() < begun + options.wait:
                        time.sleep(0.02)
                    return time.monotonic() - begun if 1 in first.alive() else None
        finally:
            over.set()
            for thread in threads:
                thread.join()


def strangers(address: tuple[str, int], count: int, words: bytes, over: threading.Event) -> None:
    """Keep `count` connections open."""
    held: list[socket.socket] = []
    while not over.is_set():
        held = [one for one in held if is_open(one)]
        while len(held) < count and not over.is_set():
            try:
                one = socket.create_connection(address, timeout=2)
                one.sendall(words)
            except OSError:
                break
            one.setblocking(False)
            held.append(one)
        time.sleep(0.01)
    for one in held:
        one.close()


def is_open(one: socket.socket) -> bool:
    try:
        if one.recv(1000):
            return True
    except BlockingIOError:
        return True
    except OSError:
        pass
    one.close()
    return False


if __name__ == "__main__":
    main()
