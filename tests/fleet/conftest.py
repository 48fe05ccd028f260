"""Fleets of processes, none of which outlives its test."""

from __future__ import annotations

import pytest
from devices import Devices
from fleet_cases import PATIENT, tiny_fleet, written
from fleet_process import ProcessFleet


@pytest.fixture
def processes(tmp_path):
    """`processes(config, missing="wait")`: agents over mutual TLS that share one folder."""
    made = []

    def make(config=None, **keys):
        fleet = tiny_fleet(config, **{**PATIENT, **keys})
        made.append(ProcessFleet(written(tmp_path, fleet), fleet))
        return made[-1]

    yield make
    for one in made:
        one.__exit__()


@pytest.fixture
def devices(tmp_path, capsys):
    """The same, each with files of its own."""
    made = []

    def make(config, **keys):
        made.append(Devices(tmp_path, config, capsys, **keys))
        return made[-1]

    yield make
    for one in made:
        one.fleet.__exit__()
