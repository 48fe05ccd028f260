"""Fleets that change while they run, over mutual TLS: agents join and leave, certificates are renewed and taken back.

Every agent has a folder of its own, as on a device of its own; a roster is given to one of them.
"""

from __future__ import annotations

import shutil
import sys
import time

import pytest
from fleet_cases import free_ports, tiny, tiny_fleet, written
from fleet_process import PATIENCE, ProcessFleet

from peermask.cli.main import main
from peermask.node.collect import collect_run
from peermask.node.fleet import load_fleet

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and signalled as on Linux")


class Devices:
    """A fleet whose agents each have files of their own; `home` has the authority's key."""

    def __init__(self, folder, config, capsys, pace=0.03, **keys):
        held = tiny_fleet(config, **keys)
        self.home, self.capsys = folder / "home", capsys
        self.home.mkdir()
        self.fleet = ProcessFleet(written(self.home, held), held, pace=pace)

    def give(self, agent, *, file=True, certificate=True):
        """Copy to a device what belongs there."""
        device = self.home.parent / f"device-{agent}"
        (device / "certs").mkdir(parents=True, exist_ok=True)
        if certificate:
            for name in ("ca.pem", f"agent-{agent}.pem", f"agent-{agent}.key"):
                shutil.copy2(self.home / "certs" / name, device / "certs" / name)
        if file:
            shutil.copy2(self.home / "fleet.toml", device / "fleet.toml")
        return device / "fleet.toml"

    def start(self, *agents):
        for agent in agents:
            self.fleet.start(agent, path=self.give(agent))

    def command(self, *arguments):
        """`peermask fleet ...` at home; what it prints."""
        with pytest.raises(SystemExit) as ended:
            main(["fleet", arguments[0], str(self.home / "fleet.toml"), *map(str, arguments[1:])])
        out, err = self.capsys.readouterr()
        assert (ended.value.code, err) == (0, "")
        return out

    def until_said(self, agent, words):
        end = time.monotonic() + PATIENCE
        while not any(words in line for line in self.fleet.said(agent)):
            assert time.monotonic() < end, f"agent {agent} never said {words!r}: {self.fleet.lines(agent)[-5:]}"
            time.sleep(0.02)


@pytest.fixture
def devices(tmp_path, capsys):
    made = []

    def make(config, **keys):
        made.append(Devices(tmp_path, config, capsys, **keys))
        return made[-1]

    yield make
    for one in made:
        one.fleet.__exit__()


@pytest.mark.parametrize("missing", ["last", "wait"])
def test_an_agent_joins_a_running_fleet_and_another_leaves_it(devices, missing):
    made = devices(tiny(rounds=600), missing=missing)
    fleet = made.fleet
    made.start(0, 1, 2, 3)
    fleet.until_round(0, 5)
    out = made.command("add", "--host", "127.0.0.1", "--port", free_ports(1), "--link", 1, "--link", 3)
    assert "linked to 1, 3, retention 0.3" in out
    made.give(0, certificate=False)  # to one that is no neighbour of the new one
    made.start(4)
    fleet.until(4, lambda report: report["alive"] == 2 and not report["absent"], "both neighbours")
    fleet.until(1, lambda report: report["neighbours"] == report["alive"] == 3 and not report["absent"], "a third")
    assert fleet.reports(4)[0]["round"] >= 5
    assert any("the fleet is in round" in line for line in fleet.said(4))

    made.command("remove", 0)
    made.give(4, certificate=False)
    assert fleet.join(0) == [2]
    assert "agent 0 has left this fleet for good (roster 2); all is in" in fleet.said(0)[-1]
    fleet.until(1, lambda report: report["neighbours"] == report["alive"] == 2 and not report["absent"], "two")
    assert fleet.join(1, 2, 3, 4) == [0] * 4
    assert "0" not in fleet.result(2)["absent"]
    held = load_fleet(made.home / "fleet.toml")
    run = collect_run(held, [fleet.out(agent) for agent in (1, 2, 3, 4)], made.home / "run")
    assert run.manifest["roster"]["serial"] == 2
    assert {int(row["agent"]) for row in run.agent_rows()} == {1, 2, 3, 4}
