"""The commands `fleet`, `node` and `swarm`: what they write, and one line for each mistake."""

from __future__ import annotations

import pytest
from fleet_cases import refused, tiny_fleet, written

from peermask.config.file import load_config
from peermask.fleet.certificates import make_certificates
from peermask.fleet.credentials import Credentials, check_credentials
from peermask.fleet.fleet import load_fleet
from peermask.fleet.journal import Journal
from peermask.fleet.sessions import session_settings
from peermask.run.build import build

SMALL = ["--set", "agents=4", "--set", "retention=0.3", "--set", "graph.name=ring", "--set", "model.name=mlp"]


@pytest.fixture
def fleet(tmp_path):
    path = written(tmp_path, tiny_fleet())
    make_certificates(load_fleet(path), tmp_path / "certs")
    return path


def test_a_fleet_file_and_its_certificates(call, tmp_path):
    path = tmp_path / "fleet.toml"
    code, out, _ = call("fleet", "new", path, *SMALL, "--host", "10.0.0.1", "--missing", "wait")
    assert code == 0
    assert "4 agents, 4 links, accord" in out
    assert "ind-mask is ignored: a fleet runs one algorithm, accord" in out
    fleet = load_fleet(path)
    assert (fleet.missing, fleet.agents[3].address) == ("wait", "10.0.0.1:7453")
    code, out, _ = call("fleet", "certs", path)
    assert (code, "4 certificates made" in out) == (0, True)
    code, out, _ = call("fleet", "renew", path, 2)
    assert (code, "1 certificates renewed" in out) == (0, True)


def test_a_revoked_certificate_no_longer_counts(call, fleet, tmp_path):
    old = (tmp_path / "certs" / "agent-2.pem").read_bytes()
    code, out, _ = call("fleet", "revoke", fleet, 2)
    assert code == 0
    assert "roster 1, 4 agents, 4 links" in out
    held = load_fleet(fleet)
    assert [member.name for member in held.agents] == ["agent-0", "agent-1", "agent-2-1", "agent-3"]
    check_credentials(held, tmp_path / "certs", 2)
    settings = session_settings(held, 1, Credentials.of(tmp_path / "certs", 1), 1000)
    assert {"id": "agent-2-1", "cert_common_names": ["agent-2-1"]} in settings["access_control"]["subjects"]
    (tmp_path / "certs" / "agent-2.pem").write_bytes(old)
    assert "was revoked, or this fleet file is older" in refused(call("node", fleet, "--agent", 2))
    assert "agent 9 does not exist" in refused(call("fleet", "revoke", fleet, 9))


def test_an_operator_that_was_never_made_may_be_a_misspelt_one(call, fleet):
    code, out, _ = call("fleet", "revoke", fleet, "--operator", "ann")
    assert (code, "no certificate of operator ann; if the name is misspelt" in " ".join(out.split())) == (0, True)


def test_a_folder_of_another_fleet_or_agent_is_refused(call, fleet, tmp_path):
    held = load_fleet(fleet)
    Journal(build(held.experiment), tmp_path / "out", 1, held.run).open(print)
    assert "out is of agent 1, not 0" in refused(call("node", fleet, "--agent", 0, "--out", tmp_path / "out"))
    Journal(build(held.experiment), tmp_path / "else", 0, "0" * 16).open(print)
    said = refused(call("node", fleet, "--agent", 0, "--out", tmp_path / "else"))
    assert f"else is of fleet '{'0' * 16}', not '{held.run}'" in said
    assert "else is of fleet" in refused(call("fleet", "collect", fleet, tmp_path / "else", "--out", tmp_path / "r"))


def test_mistakes_when_writing_a_fleet_file(call, tmp_path):
    path = tmp_path / "fleet.toml"
    assert "--missing 'never'" in refused(call("fleet", "new", path, *SMALL, "--missing", "never"))
    assert "2 hosts for 4 agents" in refused(call("fleet", "new", path, *SMALL, "--host", "a", "--host", "b"))
    assert "is not host:port" in refused(call("fleet", "new", path, *SMALL, "--host", "a b"))
    assert "does not exist" in refused(call("fleet", "new", tmp_path / "no" / "fleet.toml", *SMALL))
    assert "2 values for 4 agents" in refused(call("fleet", "new", path, *SMALL, "--set", "retention=[0.1,0.2]"))
    path.write_text("")
    assert "exists; give another name" in refused(call("fleet", "new", path, *SMALL))


def test_mistakes_when_starting_an_agent(call, fleet, tmp_path):
    assert "fleet.tml does not exist" in refused(call("node", tmp_path / "fleet.tml", "--agent", 0))
    assert "agent 4 does not exist" in refused(call("node", fleet, "--agent", 4))
    assert "--agent" in refused(call("node", fleet))
    assert "device 'gpu'" in refused(call("node", fleet, "--agent", 0, "--device", "gpu"))
    (tmp_path / "certs" / "agent-0.key").chmod(0o644)
    assert "chmod 600" in refused(call("node", fleet, "--agent", 0))
    (tmp_path / "certs" / "ca.pem").unlink()
    assert "agent 1 has no certificate" in refused(call("node", fleet, "--agent", 1))
    assert "agent 0 has no certificate" in refused(call("swarm", fleet, "--out", tmp_path / "run"))


def test_a_folder_of_another_run_is_not_touched(call, fleet, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("dear")
    assert "out exists" in refused(call("node", fleet, "--agent", 0, "--out", tmp_path / "out"))
    assert "give another --out" in refused(call("swarm", fleet, "--out", tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["letter.txt"]


def test_an_experiment_is_no_fleet_file(call, tmp_path):
    (tmp_path / "experiment.toml").write_text("agents = 4\n")
    said = refused(call("swarm", tmp_path / "experiment.toml"))
    assert "experiment.toml: is not a fleet file; make one of an experiment with `peermask fleet new FLEET" in said


def test_the_experiment_of_a_fleet_is_a_config(call, fleet, tmp_path):
    code, out, _ = call("fleet", "experiment", fleet)
    (tmp_path / "experiment.toml").write_text(out)
    assert (code, load_config(tmp_path / "experiment.toml").hash) == (0, load_fleet(fleet).experiment.hash)


def test_folders_to_collect_are_checked(call, fleet, tmp_path):
    said = refused(call("fleet", "collect", fleet, tmp_path, "--out", tmp_path / "r"))
    assert "is not the folder of an agent" in said
    assert not (tmp_path / "r").exists()


def test_collecting_overwrites_no_file_and_no_run(call, fleet, tmp_path):
    four, run = [tmp_path] * 4, tmp_path / "earlier"
    run.mkdir()
    (run / "metrics.csv").write_text("kept")
    assert f"{run} exists" in refused(call("fleet", "collect", fleet, *four, "--out", run))
    assert (run / "metrics.csv").read_text() == "kept"
    assert "fleet.toml exists" in refused(call("fleet", "collect", fleet, *four, "--out", fleet))
