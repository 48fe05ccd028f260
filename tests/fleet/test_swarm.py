"""A whole fleet on this machine: stopped, killed, started twice; what it collects is an ordinary run."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys

import pytest
from fleet_cases import PATIENT, Notes, free_ports, simulated, tiny, tiny_fleet, written

from peermask.errors import NodeError
from peermask.files import try_lock
from peermask.fleet.authority import sign
from peermask.fleet.certificates import make_certificates
from peermask.fleet.fleet import certificates_of
from peermask.fleet.roster import add_agent, encode_roster, remove_agents
from peermask.fleet.start import agent_out, default_out, run_node
from peermask.fleet.swarm import run_swarm
from peermask.run.result import RunResult
from waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and signalled as on Linux")


def two_agents(folder, rounds, **keys):
    """The file of a fleet of two, and its config."""
    config = tiny(agents=2, rounds=rounds, graph={"name": "path"})
    held = tiny_fleet(config, **PATIENT, **keys)
    path = written(folder, held)
    make_certificates(held, certificates_of(path, held))
    return path, held


def swarm(path, *arguments, **variables):
    command = [sys.executable, "-m", "peermask", "swarm", str(path), *map(str, arguments)]
    env = {**os.environ, **variables}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


# In every process of Python: an agent waits after round 5 until it is told to stop, or was told before.
WAITING = """
import signal, threading
import peermask.cli.node

said, set_handler, told = peermask.cli.node.Events.round, signal.signal, threading.Event()


def noting(which, handler):
    noted = (lambda *sent: (told.set(), handler(*sent))) if which == signal.SIGTERM and callable(handler) else handler
    return set_handler(which, noted)


def stay(events, report):
    said(events, report)
    if report.round == 5:
        told.wait()


peermask.cli.node.Events.round, signal.signal = stay, noting
"""


@pytest.mark.long
def test_a_swarm_stops_goes_on_and_gives_an_ordinary_run_folder(tmp_path, monkeypatch):
    path, held = two_agents(tmp_path, 100, missing="wait")
    run = tmp_path / default_out(held)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "waiting").mkdir()
    (tmp_path / "waiting" / "sitecustomize.py").write_text(WAITING)
    with swarm(path, PYTHONPATH=os.pathsep.join(map(str, ["waiting", *filter(None, sys.path)]))) as stopped:
        saved = [agent_out(run, agent) / "checkpoints" for agent in (0, 1)]
        until(lambda: stopped.poll() is not None or all(any(one.glob("*.safetensors")) for one in saved))
        stopped.terminate()
        out, err = stopped.communicate()
    assert (stopped.returncode, err) == (128 + signal.SIGTERM, "")
    assert "rerun the same command to resume" in out
    with swarm(path, FORCE_COLOR="1") as again:  # as to a terminal
        out, err = again.communicate()
    assert (again.returncode, err) == (0, "")
    assert "100/100" in out  # in the table that follows the agents
    assert out.splitlines()[-1] == str(default_out(held))
    assert RunResult.open(run).hash == simulated(held.experiment, tmp_path / "sim").hash
    assert not [one for one in (run, *run.rglob("*")) if one.stat().st_mode & 0o077]  # they tell of the data
    # An agent by hand has the folder that the swarm gave it.
    notes = Notes()
    alone = run_node(path, 0, notes)
    assert (alone.status, alone.out) == ("finished", agent_out(default_out(held), 0))
    assert notes.lines == [f"this run is finished; its result is in {alone.out}"]
    assert not (run / "agent-0").exists()


@pytest.mark.long
def test_a_killed_agent_is_said_to_be_killed_and_a_second_swarm_touches_nothing(tmp_path):
    path, _ = two_agents(tmp_path, 100_000)
    out, first, metrics = tmp_path / "run", free_ports(2), []
    seen = []

    def act(members):
        if seen or not all(member.report for member in members):
            return
        link = http.client.HTTPConnection("127.0.0.1", first + 1, timeout=PATIENCE)
        link.request("GET", "/metrics")
        metrics.append(link.getresponse().read())
        with swarm(path, "--out", out) as second:
            seen.extend((*second.communicate(), second.returncode))
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


def test_agents_that_have_left_are_not_started(tmp_path):
    path, held = two_agents(tmp_path, 2)
    path.unlink()
    later = remove_agents(add_agent(held, "127.0.0.1", links=(0, 1)), [1])
    signature = sign(certificates_of(path, later), encode_roster(later))
    written(tmp_path, later.model_copy(update={"signature": signature}))
    make_certificates(later, certificates_of(path, later))
    result = run_swarm(path, tmp_path / "run")
    assert (result.failed, result.run.manifest["roster"]["agents"]) == ({}, [0, 2])


def test_an_agent_that_runs_is_not_run_twice(tmp_path):
    path, _ = two_agents(tmp_path, 3)
    with try_lock(tmp_path / ".mine.lock"), pytest.raises(NodeError, match=r"agent 0 is being run in .*mine"):
        run_node(path, 0, Notes(), out=tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
