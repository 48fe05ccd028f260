"""A whole fleet on this machine: stopped, killed, started twice; what it collects is an ordinary run."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time

import pytest
from fleet_cases import Notes, free_ports, simulated, tiny, tiny_fleet, written

from peermask.errors import NodeError
from peermask.experiment.result import RunResult
from peermask.files import claimed
from peermask.node.certificates import make_certificates
from peermask.node.start import agent_out, certificates_of, default_out, run_node
from peermask.node.swarm import run_swarm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and signalled as on Linux")


def two_agents(folder, rounds, **keys):
    """The file of a fleet of two, and its config."""
    config = tiny(agents=2, rounds=rounds, graph={"name": "path"})
    held = tiny_fleet(config, **keys)
    path = written(folder, held)
    make_certificates(held, certificates_of(path, held))
    return path, held


def swarm(path, out, **variables):
    command = [sys.executable, "-m", "peermask", "swarm", str(path), "--out", str(out)]
    env = {**os.environ, **variables}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_a_swarm_stops_goes_on_and_gives_an_ordinary_run_folder(tmp_path):
    path, held = two_agents(tmp_path, 120, missing="wait")
    with swarm(path, tmp_path / "run") as stopped:
        end = time.monotonic() + 60
        while not any((tmp_path / "run" / "agents" / "agent-1" / "checkpoints").glob("*.safetensors")):
            assert time.monotonic() < end
            time.sleep(0.01)
        stopped.send_signal(signal.SIGTERM)
        out, err = stopped.communicate(timeout=60)
    assert (stopped.returncode, err) == (128 + signal.SIGTERM, "")
    assert "rerun the same command to resume" in out
    with swarm(path, tmp_path / "run", FORCE_COLOR="1") as again:  # as to a terminal
        out, err = again.communicate(timeout=60)
    assert (again.returncode, err) == (0, "")
    assert "120/120" in out  # in the table that follows the agents
    assert out.splitlines()[-1] == str(tmp_path / "run")
    assert RunResult.open(tmp_path / "run").hash == simulated(held.experiment, tmp_path / "sim").hash


@pytest.mark.long
def test_a_killed_agent_is_said_to_be_killed_and_a_second_swarm_touches_nothing(tmp_path):
    path, _ = two_agents(tmp_path, 100_000)
    out, first, metrics = tmp_path / "run", free_ports(2), []
    seen = []

    def act(members):
        if seen or not all(member.report for member in members):
            return
        link = http.client.HTTPConnection("127.0.0.1", first + 1, timeout=30)
        link.request("GET", "/metrics")
        metrics.append(link.getresponse().read())
        with swarm(path, out) as second:
            seen.extend((*second.communicate(timeout=60), second.returncode))
        seen.extend(member.log.read_text() for member in members)
        os.kill(members[0].process.pid, signal.SIGKILL)
        members[0].process.wait()

    result = run_swarm(path, out, show=act, should_stop=lambda: bool(seen), metrics=first)
    assert b'peermask_build_info{agent="1",' in metrics[0]
    said, line, code, *logs = seen
    assert (said, code) == ("", 2)
    assert line.startswith(f"peermask: {out} is being run by another swarm; ")
    assert line.count("\n") == 1
    assert not any("peermask:" in log for log in logs)  # the agents' own, not errors of a second pair
    assert result.failed == {0: "was killed by signal 9; start the same command again to go on"}


def test_an_agent_by_hand_has_the_folder_a_swarm_gives_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, held = two_agents(tmp_path, 3)
    result = run_swarm(path)
    assert (result.failed, result.run.root) == ({}, default_out(held))
    notes = Notes()
    alone = run_node(path, 0, notes)
    assert (alone.status, alone.out) == ("finished", agent_out(default_out(held), 0))
    assert notes.lines == [f"this run is finished; its result is in {alone.out}"]
    assert not (default_out(held) / "agent-0").exists()


def test_an_agent_that_runs_is_not_run_twice(tmp_path):
    path, _ = two_agents(tmp_path, 3)
    with claimed(tmp_path / ".mine.lock"), pytest.raises(NodeError, match=r"agent 0 is being run in .*mine"):
        run_node(path, 0, Notes(), out=tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
