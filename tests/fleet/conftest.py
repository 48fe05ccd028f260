"""Fleets of processes, none of which outlives its test."""

from __future__ import annotations

import shutil

import pytest
from devices import Devices
from fleet_cases import PATIENT, tiny_fleet, written
from fleet_process import ProcessFleet

from peermask.fleet.certificates import make_certificates


@pytest.fixture(scope="module")
def made(request, tmp_path_factory):
    """The certificates of the module's FLEET."""
    folder = tmp_path_factory.mktemp("fleet") / "certs"
    make_certificates(request.module.FLEET, folder)
    return folder


@pytest.fixture
def certs(made, tmp_path):
    """A copy of them that a test may change."""
    return shutil.copytree(made, tmp_path / "certs")


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
