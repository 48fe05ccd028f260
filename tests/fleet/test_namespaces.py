"""A fleet in network namespaces of its own: a cable is cut and mended, and packets are lost.

Needs root, `ip`, and for the loss `nft`; elsewhere these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest
from fleet_cases import PATIENT, simulated, tiny, written
from fleet_process import ProcessFleet, relay_process

from machine import has_namespaces, ip
from peermask.fleet.fleet import new_fleet
from waiting import PATIENCE

LOSS = """
table inet lossy {
  chain input {
    type filter hook input priority 0;
    numgen random mod 1000 < 50 counter drop
  }
}
"""


pytestmark = pytest.mark.skipif(not has_namespaces(), reason="needs root and network namespaces")


@pytest.fixture
def cabled():
    """Four namespaces, each with an interface eth0 on one bridge; all names are this process's own."""
    name = f"pm{os.getpid()}"
    hub, peers = f"{name}hub", [f"{name}p{i}" for i in range(4)]
    try:
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "br0", "type", "bridge")
        ip("-n", hub, "link", "set", "br0", "up")
        for i, peer in enumerate(peers):
            ip("netns", "add", peer)
            ip("link", "add", f"port{i}", "netns", hub, "type", "veth", "peer", "name", "eth0", "netns", peer)
            ip("-n", hub, "link", "set", f"port{i}", "master", "br0", "up")
            ip("-n", peer, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", peer, "link", "set", device, "up")
        yield peers
    finally:
        for one in (*peers, hub):
            ip("netns", "del", one, check=False)


def spread(tmp_path, config, **keys):
    """A fleet whose agents are at 10.77.0.1 to .4."""
    held = new_fleet(config, [f"10.77.0.{i + 1}" for i in range(4)])
    held = held.model_copy(update={**PATIENT, **keys})
    return written(tmp_path, held), held


@pytest.mark.long
def test_a_cut_cable_costs_no_more_than_deadlines_and_mends(cabled, tmp_path):
    path, held = spread(tmp_path, tiny(rounds=100_000), round_deadline=0.5)
    with ProcessFleet(path, held, namespaces=cabled) as made:
        made.hold(5)
        made.start()
        made.until_round(0, 5)
        ip("-n", cabled[2], "link", "set", "eth0", "down")
        for neighbour in (1, 3):
            made.until(neighbour, lambda report: 2 in [a["neighbour"] for a in report["absent"]], "the absence of 2")
        made.until(2, lambda report: len(report["absent"]) == 2, "being alone")
        ip("-n", cabled[2], "link", "set", "eth0", "up")
        cut = {agent: len(made.reports(agent)) for agent in (1, 2, 3)}
        for agent, before in cut.items():
            made.until(agent, lambda report: not report["absent"], "everybody", since=before)
        for agent in range(4):
            made.send(agent, signal.SIGTERM)
        made.release()
        assert made.join() == [128 + signal.SIGTERM] * 4
        assert made.collect(partial=True).status == "unfinished"


@pytest.mark.skipif(not shutil.which("nft"), reason="needs nft to lose packets")
def test_five_percent_loss_changes_nothing_but_time(cabled, tmp_path):
    config = tiny(rounds=15)
    path, held = spread(tmp_path, config, missing="wait")
    for peer in cabled:
        subprocess.run(
            ["ip", "netns", "exec", peer, "nft", "-f", "-"], input=LOSS, text=True, check=True, timeout=PATIENCE
        )
    with ProcessFleet(path, held, namespaces=cabled) as made:
        made.start()
        assert made.join() == [0] * 4
        assert made.collect().hash == simulated(config, tmp_path / "sim").hash
    lost = subprocess.run(
        ["ip", "netns", "exec", cabled[0], "nft", "list", "ruleset"], capture_output=True, text=True, check=True
    )
    assert "counter packets 0" not in lost.stdout


def test_agents_that_cannot_reach_each_other_meet_at_a_relay(cabled, tmp_path):
    """Every peer reaches the hub, and no other peer: routers in between that let nothing in."""
    hub = cabled[0].removesuffix("p0") + "hub"
    ip("-n", hub, "link", "set", "lo", "up")
    ip("-n", hub, "addr", "add", "10.77.0.100/24", "dev", "br0")
    for i in range(4):
        ip("-n", hub, "link", "set", f"port{i}", "type", "bridge_slave", "isolated", "on")
    config = tiny(rounds=15)
    held = new_fleet(config, [f"10.77.0.{i + 1}" for i in range(4)])
    members = tuple(member.model_copy(update={"relayed": True}) for member in held.agents)
    held = held.model_copy(update={"agents": members, "relay": "10.77.0.100:7440", "missing": "wait", **PATIENT})
    path = written(tmp_path, held)
    with ProcessFleet(path, held, namespaces=cabled) as made, relay_process(made, hub):
        made.start()
        assert made.join() == [0] * 4
        assert made.collect().hash == simulated(config, tmp_path / "sim").hash
