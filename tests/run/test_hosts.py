"""Ranks on two hosts: network namespaces with two cables between them, IPv4 and IPv6."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rank_process import RankRun
from test_ranks import ON_CPU, five, written

from commands import Small
from machine import has_ipv6, has_namespaces, ip
from peermask.errors import PeermaskError, RunError
from peermask.run.rendezvous import Member, choose_address
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment

NEEDS_IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[str]]:
    """Two network namespaces with two cables, at 10.78.0.1 and .2, 10.79.0.1 and .2; the names are this process's."""
    if not has_namespaces():
        pytest.skip("needs root and network namespaces")
    names = [f"pmhost{os.getpid()}n{i}" for i in range(2)]
    try:
        for name in names:
            ip("netns", "add", name)
        for device in ("eth0", "eth1"):
            ip("link", "add", device, "netns", names[0], "type", "veth", "peer", "name", device, "netns", names[1])
        for i, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.78.0.{i + 1}/24", "dev", "eth0")
            ip("-n", name, "addr", "add", f"10.79.0.{i + 1}/24", "dev", "eth1")
            if has_ipv6():
                ip("-n", name, "addr", "add", f"fd78::{i + 1}/64", "dev", "eth0", "nodad")
            for device in ("lo", "eth0", "eth1"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name, check=False)


def test_two_hosts_with_folders_of_their_own(small: Small, tmp_path: Path, hosts: list[str]) -> None:
    """Only the first needs the run folder, at the start and when it goes on."""
    whole = run_experiment(five(small), tmp_path / "whole", execution=ON_CPU)
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
        written(five(small, rounds=4), folder)
    for arguments in (["config.toml", "--out", "run"], ["--resume", "run", "--set", "rounds=7"]):
        with RankRun(tmp_path, 2, address="10.78.0.1") as ranks:
            for rank, (folder, host) in enumerate(zip(folders, hosts, strict=True)):
                ranks.start("run", "--device", "cpu", *arguments, ranks=[rank], folder=folder, namespace=host)
            assert ranks.join() == [0, 0], ranks.lines()
    assert RunResult.open(folders[0] / "run").hash == whole.hash
    assert not (folders[1] / "run").exists()


def add_ranks() -> None:
    """Join, and print the sum of all ranks and the address that this one took."""
    from peermask.run.rank_group import join_ranks

    try:
        with join_ranks(device="cpu") as ranks:
            assert ranks is not None
            total = ranks.all_gather(torch.tensor([ranks.rank + 1]), ranks.size).sum()
            print("sum", int(total), ranks.address, flush=True)
    except PeermaskError as error:
        print(f"peermask: {error}", flush=True)
        raise SystemExit(error.exit_code) from None


@pytest.mark.parametrize(
    ("masters", "taken"),
    [
        (["10.78.0.1", "10.78.0.1"], ["10.78.0.1", "10.78.0.2"]),
        (["10.79.0.1", "10.79.0.1"], ["10.79.0.1", "10.79.0.2"]),  # the second network
        (["127.0.1.1", "10.78.0.1"], ["10.78.0.1", "10.78.0.2"]),  # as the name of a Debian host leads to
        (["127.0.0.1", "10.79.0.1"], ["10.79.0.1", "10.79.0.2"]),
        pytest.param(["fd78::1", "[fd78::1]"], ["fd78::1", "fd78::2"], marks=NEEDS_IPV6),
    ],
)
def test_hosts_find_each_other(tmp_path: Path, hosts: list[str], masters: list[str], taken: list[str]) -> None:
    """Whatever the host's name leads to, and whatever another run left in the environment."""
    with RankRun(tmp_path, 2) as ranks:
        for rank, host in enumerate(hosts):
            place = {"MASTER_ADDR": masters[rank], "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            ranks.start(ranks=[rank], namespace=host, work=add_ranks, environment=place)
        assert ranks.join() == [0, 0], ranks.lines()
        assert [ranks.last_line(rank) for rank in range(2)] == [f"sum 3 {address}" for address in taken]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"MASTER_ADDR": "203.0.113.7"}, "rank 0 does not reach itself at MASTER_ADDR = 203.0.113.7"),
        ({"MASTER_ADDR": "10.78.0.2"}, "rank 0 does not reach itself at MASTER_ADDR = 10.78.0.2"),
    ],
)
def test_a_wrong_master_address(tmp_path: Path, hosts: list[str], environment: dict[str, str], said: str) -> None:
    with RankRun(tmp_path, 2) as ranks:
        ranks.start(ranks=[0], namespace=hosts[0], work=add_ranks, environment=environment)
        assert ranks.join() == [2]
        (line,) = ranks.lines()
        assert said in line
        assert "set MASTER_ADDR on all hosts to an address of the host of rank 0" in line


def test_an_unknown_interface_ends_all(tmp_path: Path) -> None:
    with RankRun(tmp_path, 2) as ranks:
        ranks.start(ranks=[0], work=add_ranks)
        ranks.start(ranks=[1], work=add_ranks, environment={"GLOO_SOCKET_IFNAME": "eth77"})
        assert ranks.join() == [2, 2]
        (line,) = ranks.lines()
    assert "rank 1 (process" in line
    assert "GLOO_SOCKET_IFNAME = 'eth77': this host has no such network interface" in line


def test_an_interface_of_the_users_choice(tmp_path: Path) -> None:
    with RankRun(tmp_path, 2) as ranks:
        ranks.start(work=add_ranks, environment={"GLOO_SOCKET_IFNAME": "lo"})
        assert ranks.join() == [0, 0], ranks.lines()


@NEEDS_IPV6
def test_ipv6_on_one_host(tmp_path: Path) -> None:
    with RankRun(tmp_path, 2, address="::1") as ranks:
        ranks.start(work=add_ranks)
        assert ranks.join() == [0, 0], ranks.lines()
        assert ranks.last_line(0) == "sum 3 ::1"


def test_addresses_that_others_do_not_reach() -> None:
    """As with tunnels: each host reaches the store by its own loopback address."""
    with socket.create_server(("127.0.0.1", 0)) as open_port, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # it does not listen
        ports = [each.getsockname()[1] for each in (open_port, closed)]
        here, there = (
            Member(rank, host, 1, "cpu", False, "127.0.0.1", "127.0.0.1", ports[rank])
            for rank, host in enumerate(("here", "there"))
        )
        assert choose_address(here, [here]) == "127.0.0.1"
        with pytest.raises(RunError) as refused:
            choose_address(here, [here, there])
    assert "rank 0 on here, which took the address 127.0.0.1, does not reach rank 1 on there" in str(refused.value)
    assert "GLOO_SOCKET_IFNAME" in str(refused.value)
