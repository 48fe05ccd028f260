"""What tests take from the machine that runs them, whatever its network, its environment and its paths are."""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path

import pytest

from waiting import PATIENCE

CLONE_NEWNET = 0x40000000
LONGEST_FOLDER = 60  # characters; a socket of a file has room for 107 with its own name
# Of terminals, proxies, batch systems and locales: a test sets those that it needs.
VARIABLES = (
    "COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY",
    "all_proxy", "ALL_PROXY", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "GLOO_SOCKET_IFNAME",
)  # fmt: skip
PRELOADED = ("command_process", "rank_process", "fleet_process", "peermask.cli.main", "peermask.run.runner")


def forget_environment() -> None:
    for name in VARIABLES:
        os.environ.pop(name, None)


@cache
def socket_folder() -> str:
    """A folder for temporary files whose path leaves room for the name of a socket."""
    folder = tempfile.gettempdir()
    if len(folder) > LONGEST_FOLDER:
        folder = tempfile.mkdtemp(prefix="tests-", dir="/tmp")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def forkserver() -> ForkServerContext:
    """Forks processes that have imported all but plug-ins: importing torch takes longer than a test."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    if (folder := socket_folder()) != tempfile.gettempdir():  # the server listens at a file in it
        multiprocessing.process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # where it finds modules of tests
        ensure_running()
    return context


def has_ipv6() -> bool:
    """The kernel may have it and not offer it, as in many containers."""
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def ip(*arguments: object, check: bool = True) -> bool:
    """`ip ...`; whether it succeeds."""
    command = ["ip", *map(str, arguments)]
    return subprocess.run(command, check=check, capture_output=True, timeout=PATIENCE).returncode == 0


@cache
def has_namespaces() -> bool:
    """Namespaces, with cables between them and bridges inside."""
    if os.geteuid() or not shutil.which("ip"):
        return False
    name = f"pmprobe{os.getpid()}"
    try:
        return (
            ip("netns", "add", name, check=False)
            and ip("-n", name, "link", "add", "one", "type", "veth", "peer", "name", "other", check=False)
            and ip("-n", name, "link", "add", "br0", "type", "bridge", check=False)
        )
    finally:
        ip("netns", "del", name, check=False)


def enter_namespace(name: str) -> None:
    with Path(f"/run/netns/{name}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
