"""Fleets that change while they run, over mutual TLS: agents join and leave, certificates are renewed and taken back.

Every agent has a folder of its own, as on a device of its own; a roster is given to one of them.
"""

from __future__ import annotations

import signal
import sys

import pytest
from devices import absent, all_heard
from fleet_cases import free_ports, simulated, tiny

from peermask.errors import RunError
from peermask.fleet.collect import collect_run
from peermask.fleet.fleet import load_fleet
from peermask.run.trace import replay_config
from peermask.store.table import read_rows

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and signalled as on Linux")


@pytest.mark.parametrize("missing", ["last", pytest.param("wait", marks=pytest.mark.long)])
def test_an_agent_joins_a_running_fleet_and_another_leaves_it(devices, missing):
    made = devices(tiny(rounds=80), missing=missing)
    fleet = made.fleet
    fleet.hold(5)
    made.start(0, 1, 2, 3)
    fleet.until_round(0, 5)
    out = made.command("add", "--host", "127.0.0.1", "--port", free_ports(1), "--link", 1, "--link", 3)
    assert "linked to 1, 3, retention 0.3" in out
    made.give(0, certificate=False)  # to one that is no neighbour of the new one
    made.until_known(1, 0, 1, 2, 3)
    fleet.hold(5, 4)
    made.start(4)
    fleet.until(4, all_heard(2), "both neighbours")
    fleet.until(1, all_heard(3), "a third")
    assert fleet.reports(4)[0]["round"] >= 5
    assert any("the fleet is in round" in line for line in fleet.said(4))

    made.command("remove", 0)
    made.give(4, certificate=False)
    made.until_known(2, 0, 1, 2, 3, 4)
    fleet.release(0)
    assert fleet.join(0) == [2]
    assert "agent 0 has left this fleet permanently (roster 2); its files are in" in fleet.said(0)[-1]
    fleet.until(1, all_heard(2), "two", since=len(fleet.reports(1)))
    fleet.release()
    assert fleet.join(1, 2, 3, 4) == [0] * 4
    assert "0" not in fleet.result(2)["absent"]
    held = load_fleet(made.home / "fleet.toml")
    run = collect_run(held, [fleet.out(agent) for agent in (1, 2, 3, 4)], made.home / "run")
    assert run.manifest["roster"]["serial"] == 2
    assert (run.manifest["missing_agents"], len(run.agents)) == ([0], 5)
    assert (run.status, run.round, run.hash) == ("unfinished", 80, None)


@pytest.mark.long
def test_an_asynchronous_fleet_changes_as_any_other(devices):
    """One joins and one leaves, links are added and cut, a certificate is taken back; nobody waits meanwhile."""
    made = devices(tiny(rounds=100_000, asynchronous={}))
    fleet = made.fleet
    fleet.hold(5)
    made.start(0, 1, 2, 3)
    fleet.until_round(0, 5)
    made.command("add", "--host", "127.0.0.1", "--port", free_ports(1), "--link", 1, "--link", 3)
    made.give(0, certificate=False)
    made.until_known(1, 0, 1, 2, 3)
    fleet.hold(5, 4)
    made.start(4)
    fleet.until(4, all_heard(2), "both neighbours")
    fleet.until(1, all_heard(3), "a third")
    assert fleet.reports(4)[0]["round"] >= 5

    made.command("link", 0, 2)
    made.command("unlink", 0, 3)
    made.give(4, certificate=False)
    made.until_known(3, 0, 1, 2, 3, 4)
    fleet.until_said(0, "roster 3 from round")
    fleet.until(2, lambda report: report["neighbours"] == report["alive"] == 3, "a third")
    fleet.until_said(3, "neighbours are 2, 4")

    made.command("revoke", 2)
    made.give(0, certificate=False)
    made.until_known(4, 0, 1, 2, 3, 4)
    for agent in (0, 1, 3):
        fleet.until_said(agent, "roster 4 from round")
        fleet.until(agent, absent(2), "the absence of 2")
    made.give(2, file=False)
    fleet.until_said(2, "has a new certificate", playing=False)

    made.command("remove", 0)
    made.give(4, certificate=False)
    made.until_known(5, 0, 1, 2, 3, 4)
    fleet.release(0)
    assert fleet.join(0) == [2]
    fleet.until(1, all_heard(2), "two", since=len(fleet.reports(1)))
    fleet.until(3, all_heard(2), "two", since=len(fleet.reports(3)))
    for agent in (1, 2, 3, 4):
        fleet.send(agent, signal.SIGTERM)
    fleet.release()
    assert fleet.join(1, 2, 3, 4) == [128 + signal.SIGTERM] * 4
    for agent in (1, 3):
        rounds = [report["round"] for report in fleet.reports(agent)]
        assert sorted(set(rounds)) == list(range(1, rounds[-1] + 1))  # nobody jumps
    heard = [(row["round"], row["neighbour"], int(row["heard"])) for row in read_rows(fleet.out(3) / "trace.csv")]
    assert {neighbour for number, neighbour, _ in heard if number == "1"} == {"0", "2"}
    assert {neighbour for number, neighbour, _ in heard if number == heard[-1][0]} == {"2", "4"}
    held = load_fleet(made.home / "fleet.toml")
    run = collect_run(held, [fleet.out(agent) for agent in (1, 2, 3, 4)], made.home / "run", partial=True)
    assert (run.status, run.manifest["roster"]["serial"]) == ("unfinished", 5)
    with pytest.raises(RunError, match=r"agents or links changed while this fleet ran \(roster 5\)"):
        replay_config(made.home / "run")


def test_a_certificate_taken_back_on_one_device_is_refused_by_all_and_a_new_one_is_heard(devices):
    made = devices(tiny(rounds=100_000), round_deadline=1.0)
    fleet = made.fleet
    fleet.hold(3)
    made.start(0, 1, 2, 3)
    fleet.until(1, all_heard(2), "everybody")
    made.command("revoke", 2)
    made.give(0, certificate=False)  # 0 is two hops from 2, and hands it on
    made.until_known(1, 0, 1, 3)
    for agent in (1, 3):
        fleet.until_said(agent, "roster 1 from round")
        fleet.until(agent, absent(2), "the absence of 2")
    # A device with the old key reaches them, and is not heard.
    fleet.until_said(2, "was revoked, or this fleet file is older than it (agent-2, not agent-2-1)", playing=False)
    made.give(2, file=False)
    fleet.until_said(2, "has a new certificate", playing=False)
    back = {agent: len(fleet.reports(agent)) for agent in (1, 3)}
    for agent, before in back.items():
        fleet.until(agent, lambda report: not report["absent"], "everybody again", since=before)


@pytest.mark.long
def test_a_renewed_certificate_is_taken_without_a_restart_and_no_round_is_lost(devices):
    made = devices(tiny(agents=3, rounds=20), missing="wait")
    fleet = made.fleet
    fleet.hold(5)
    made.start(0, 1, 2)
    fleet.until_round(0, 5)
    made.command("renew", 1, "--days", 30)
    made.give(1, file=False)
    fleet.hold(10)
    fleet.until_said(1, "has a new certificate, which expires", playing=False)
    fleet.release()
    assert fleet.join(0, 1, 2) == [0] * 3
    assert all(fleet.result(agent)["absent"] == {} for agent in range(3))
    run = collect_run(fleet.fleet, [fleet.out(agent) for agent in range(3)], made.home / "run")
    assert run.hash == simulated(fleet.fleet.experiment, made.home / "sim").hash


def test_rosters_that_are_forged_older_or_of_another_fleet_are_refused_in_one_line(devices):
    made = devices(tiny(agents=3, rounds=100_000))
    fleet, path = made.fleet, made.home / "fleet.toml"
    fleet.hold(3)
    made.start(0, 1, 2)
    fleet.until_round(0, 3)
    made.command("unlink", 0, 2)
    first = path.read_bytes()
    path.write_bytes(first.replace(b"[0, 1], [1, 2]", b"[0, 1], [0, 2]"))  # by hand
    made.give(1, certificate=False)
    path.write_bytes(first.replace(fleet.fleet.run.encode(), b"0" * 16))
    made.give(2, certificate=False)
    fleet.until_said(1, "its roster is not signed by this fleet's authority", playing=False)
    fleet.until_said(2, f"is refused; this is fleet '{fleet.fleet.run}'", playing=False)
    path.write_bytes(first)
    made.command("link", 0, 2)
    made.give(0, certificate=False)
    made.until_known(2, 0, 1, 2)
    fleet.until_said(2, "roster 2 from round")
    path.write_bytes(first)
    made.give(1, certificate=False)
    fleet.until_said(1, "roster 1 is refused: it is older than 2, which is known here", playing=False)
    # Started again with the old file, an agent goes by what it knew.
    fleet.kill(1)
    before = len(fleet.reports(1))
    made.start(1)
    fleet.until_said(1, "using roster 2, received from neighbours; the fleet file has 1")
    fleet.until(1, lambda report: not report["absent"], "everybody again", since=before)
