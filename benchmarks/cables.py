"""Network namespaces on one bridge, as devices on a switch: cables can be cut, and packets lost. That needs root."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000


def ip(*arguments: object) -> None:
    subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True, timeout=30)


@contextmanager
def cabled(count: int) -> Iterator[list[str]]:
    """Names of namespaces with an interface eth0 each, at the addresses `host(0)`, `host(1)`, ...."""
    name = f"pb{os.getpid()}"
    hub, peers = f"{name}hub", [f"{name}p{i}" for i in range(count)]
    try:
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "br0", "type", "bridge")
        ip("-n", hub, "link", "set", "br0", "up")
        for i, peer in enumerate(peers):
            ip("netns", "add", peer)
            ip("link", "add", f"port{i}", "netns", hub, "type", "veth", "peer", "name", "eth0", "netns", peer)
            ip("-n", hub, "link", "set", f"port{i}", "master", "br0", "up")
            ip("-n", peer, "addr", "add", f"{host(i)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", peer, "link", "set", device, "up")
        yield peers
    finally:
        for one in (*peers, hub):
            subprocess.run(["ip", "netns", "del", one], capture_output=True, check=False, timeout=30)


def host(number: int) -> str:
    return f"10.78.0.{number + 1}"


def cut(namespace: str) -> None:
    ip("-n", namespace, "link", "set", "eth0", "down")


def mend(namespace: str) -> None:
    ip("-n", namespace, "link", "set", "eth0", "up")


def lose(namespace: str, percent: int) -> None:
    """Lose so many of the packets that come in from elsewhere."""
    rules = f"""
table inet lossy {{
  chain input {{
    type filter hook input priority 0;
    iifname "eth0" numgen random mod 100 < {percent} counter drop
  }}
}}
"""
    command = ["ip", "netns", "exec", namespace, "nft", "-f", "-"]
    subprocess.run(command, input=rules, text=True, check=True, timeout=30)


def enter(namespace: str) -> None:
    """With this process, for good."""
    with Path(f"/run/netns/{namespace}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
