"""A fleet in network namespaces of its own: a cable is cut and mended, and packets are lost.

Needs root, `ip`, and for the loss `nft`; elsewhere these tests are skipped.
"""

from __future__ import annotations

import shutil
import signal
import subprocess

import pytest
from benchmarks.cables import cabled, cut, host, ip, lose, mend
from fleet_cases import PATIENT, simulated, tiny, written
from fleet_process import ProcessFleet, relay_process

from machine import has_namespaces
from peermask.fleet.fleet import new_fleet, write_fleet

pytestmark = pytest.mark.skipif(not has_namespaces(), reason="needs root and network namespaces")


@pytest.fixture
def namespaces():
    with cabled(4) as names:
        yield names


def spread(tmp_path, config, **keys):
    held = new_fleet(config, [host(i) for i in range(4)])
    held = held.model_copy(update={**PATIENT, **keys})
    return written(tmp_path, held), held


@pytest.mark.long
def test_a_cut_cable_costs_no_more_than_deadlines_and_mends(namespaces, tmp_path):
    path, held = spread(tmp_path, tiny(rounds=100_000), round_deadline=0.5)
    with ProcessFleet(path, held, namespaces=namespaces) as made:
        made.hold(5)
        made.start()
        made.until_round(0, 5)
        cut(namespaces[2])
        for neighbour in (1, 3):
            made.until(neighbour, lambda report: 2 in [a["neighbour"] for a in report["absent"]], "the absence of 2")
        made.until(2, lambda report: len(report["absent"]) == 2, "being alone")
        mend(namespaces[2])
        back = {agent: len(made.reports(agent)) for agent in (1, 2, 3)}
        for agent, before in back.items():
            made.until(agent, lambda report: not report["absent"], "everybody", since=before)
        for agent in range(4):
            made.send(agent, signal.SIGTERM)
        made.release()
        assert made.join() == [128 + signal.SIGTERM] * 4
        assert made.collect(partial=True).status == "unfinished"


@pytest.mark.skipif(not shutil.which("nft"), reason="needs nft to lose packets")
def test_five_percent_loss_changes_nothing_but_time(namespaces, tmp_path):
    config = tiny(rounds=15)
    path, held = spread(tmp_path, config, missing="wait")
    for name in namespaces:
        lose(name, 5)
    with ProcessFleet(path, held, namespaces=namespaces) as made:
        made.start()
        assert made.join() == [0] * 4
        assert made.collect().hash == simulated(config, tmp_path / "sim").hash
    lost = subprocess.run(
        ["ip", "netns", "exec", namespaces[0], "nft", "list", "ruleset"], capture_output=True, text=True, check=True
    )
    assert "counter packets 0" not in lost.stdout


def test_agents_that_cannot_reach_each_other_meet_at_a_relay(namespaces, tmp_path):
    """Every peer reaches the hub, and no other peer: routers in between that let nothing in."""
    hub = namespaces[0].removesuffix("p0") + "hub"
    ip("-n", hub, "link", "set", "lo", "up")
    ip("-n", hub, "addr", "add", "10.78.0.100/24", "dev", "br0")
    for i in range(4):
        ip("-n", hub, "link", "set", f"port{i}", "type", "bridge_slave", "isolated", "on")
    config = tiny(rounds=15)
    path, held = spread(tmp_path, config, relay="10.78.0.100:7440", missing="wait")
    held = held.model_copy(
        update={"agents": tuple(member.model_copy(update={"relayed": True}) for member in held.agents)}
    )
    write_fleet(path, held)
    with ProcessFleet(path, held, namespaces=namespaces) as made, relay_process(made, hub):
        made.start()
        assert made.join() == [0] * 4
        assert made.collect().hash == simulated(config, tmp_path / "sim").hash
