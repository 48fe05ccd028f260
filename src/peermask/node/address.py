"""Addresses of a fleet: `host:port`."""

from __future__ import annotations

import re

from peermask.errors import NodeError

ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):(?P<port>[0-9]{1,5})")


def split_address(address: str, *, lowest: int = 1) -> tuple[str, int]:
    """`host:port` or `[ipv6]:port`, the host without brackets. Port 0 means any free one, where that is allowed."""
    found = ADDRESS.fullmatch(address)
    if found is None or not lowest <= int(found["port"]) < 65_536:
        raise NodeError(f"address {address!r} is not host:port, such as 192.168.1.20:7450 or [fe80::1]:7450")
    return found["host"].strip("[]"), int(found["port"])
