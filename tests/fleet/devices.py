"""A fleet whose agents each have files of their own, as on devices of their own; a roster is given to one of them."""

from __future__ import annotations

import shutil

import pytest
from fleet_cases import PATIENT, tiny_fleet, written
from fleet_process import ProcessFleet

from peermask.cli.main import main
from peermask.fleet.authority import verifier
from peermask.fleet.roster import read_signed


class Devices:
    """A fleet whose agents each have files of their own; `home` has the authority's key."""

    def __init__(self, folder, config, capsys, **keys):
        held = tiny_fleet(config, **{**PATIENT, **keys})
        self.home, self.capsys = folder / "home", capsys
        self.home.mkdir()
        self.fleet = ProcessFleet(written(self.home, held), held)

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

    def until_known(self, serial, *agents):
        """Until these agents use a roster; no round has to be played for that."""
        verify = verifier(self.home / "certs" / "ca.pem")

        def known(agent):
            kept = self.fleet.out(agent) / "roster"
            return kept.is_file() and read_signed(kept.read_bytes(), self.fleet.fleet, verify).serial >= serial

        self.fleet.until_true(lambda: all(map(known, agents)), f"roster {serial}")


def absent(*agents):
    return lambda report: {absence["neighbour"] for absence in report["absent"]} >= {*agents}


def all_heard(neighbours):
    return lambda report: report["neighbours"] == report["alive"] == neighbours and not report["absent"]
