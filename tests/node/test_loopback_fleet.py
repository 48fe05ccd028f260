"""Real fleets on this machine, with mutual TLS: killed, frozen, stopped, misconfigured; they always end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from fleet_cases import simulated, tiny, tiny_fleet, written
from fleet_process import ProcessFleet
from test_intruders import authority_of

from peermask.experiment.checkpoint import list_checkpoints
from peermask.node.certificates import sign_agent
from peermask.node.credentials import Credentials

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and signalled as on Linux")


@pytest.fixture
def fleet(tmp_path):
    made = []

    def make(config=None, pace=0.0, **keys):
        held = tiny_fleet(config, **keys)
        made.append(ProcessFleet(written(tmp_path, held), held, pace=pace))
        return made[-1]

    yield make
    for one in made:
        one.__exit__()


def test_eight_agents_killed_and_frozen_end_as_if_nothing_had_happened(fleet, tmp_path):
    """With `wait` nobody goes on without the others, so the result is the simulator's, bit for bit."""
    config = tiny(agents=8, rounds=40)
    made = fleet(config, missing="wait", pace=0.02)
    made.start()
    made.until_round(5, 4)
    made.kill(5)
    made.start(5)
    made.until_round(2, 15)
    made.send(2, signal.SIGSTOP)
    made.until_round(0, 16)
    made.kill(0)
    made.start(0)
    made.send(2, signal.SIGCONT)
    assert made.join() == [0] * 8
    assert made.collect().hash == simulated(config, tmp_path / "sim").hash
    assert all(made.result(agent)["absent"] == {} for agent in range(8))


def test_with_last_the_others_go_on_and_the_lost_come_back(fleet):
    # Enough rounds that those who come back find the others at work, on a slow machine too.
    made = fleet(tiny(rounds=400), pace=0.05, start_limit=2.0)
    made.start(0, 1, 2)
    made.until_round(0, 5)
    made.start(3)  # a late joiner
    made.until_round(3, 20)
    made.kill(1)
    made.until(0, lambda report: [a["neighbour"] for a in report["absent"]] == [1], "the absence of 1")
    made.start(1)
    made.send(3, signal.SIGSTOP)
    made.until(2, lambda report: 3 in [a["neighbour"] for a in report["absent"]], "the absence of 3")
    made.send(3, signal.SIGCONT)
    back = made.reports(2)[-1]["round"]
    made.until(2, lambda report: report["round"] > back and not report["absent"], "everybody")
    assert made.join() == [0] * 4
    assert [made.reports(agent)[-1]["round"] for agent in range(4)] == [400] * 4
    assert 1 in map(int, made.result(0)["absent"])
    assert any("the fleet is in round" in line for line in made.said(1))
    assert any("agent 3 is back" in line for line in made.said(2))
    assert made.reports(3)[0]["round"] >= 5
    assert made.collect().status == "finished"


def test_sigterm_finishes_the_round_saves_and_leaves(fleet):
    made = fleet(tiny(agents=2, rounds=2000, graph={"name": "path"}), pace=0.02)
    made.start()
    made.until_round(0, 3)
    made.send(0, signal.SIGTERM)
    assert made.join(0) == [128 + signal.SIGTERM]
    assert any("interrupted and saved" in line for line in made.said(0))
    saved = max((made.out(0) / "checkpoints").iterdir()).name
    assert saved == f"round-{made.reports(0)[-1]['round']:06d}.safetensors"
    made.send(1, signal.SIGTERM)
    assert made.join(1) == [128 + signal.SIGTERM]


@pytest.mark.parametrize(
    ("edited", "differs"), [({"experiment": tiny(seed=7)}, "config hash"), ({"round_deadline": 7.0}, "fleet file")]
)
def test_a_fleet_file_edited_on_one_device_is_refused_with_a_line_on_both_sides(fleet, tmp_path, edited, differs):
    made = fleet()
    odd = made.fleet.model_copy(update=edited)
    (tmp_path / "odd").mkdir()
    path = written(tmp_path / "odd", odd)
    (tmp_path / "odd" / "certs").symlink_to(tmp_path / "certs")
    made.start(0, 1, 2)
    made.start(3, path=path)
    assert made.join() == [0, 0, 0, 2]
    assert any(f"agent 3 was refused: its {differs} is" in line for line in made.said(0))
    assert any(f"agent 0 was refused: its {differs} is" in line for line in made.said(3))
    assert "no neighbour runs the same experiment" in made.said(3)[-1]
    assert made.result(1)["absent"] == {}
    assert list(made.result(0)["absent"]) == ["3"]


def test_without_certificates_it_runs_only_if_told_so_and_says_it_loudly(tmp_path):
    held = tiny_fleet(tiny(agents=2, rounds=3, graph={"name": "path"}))
    with ProcessFleet(written(tmp_path, held), held, insecure=True) as made:
        made.start()
        assert made.join() == [0, 0]
        (line,) = made.said(0)
        assert line.startswith(f"agent 0: INSECURE: anyone who can connect to {held.member(0).address} can read")
        made.insecure = False
        made.start(0)
        assert made.join(0) == [2]
        assert "agent 0 has no certificate" in made.said(0)[-1]


def test_a_port_in_use_is_one_line(fleet):
    made = fleet()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(made.fleet.member(0).address.rpartition(":")[2])))
        taken.listen()
        made.start(0)
        assert made.join(0) == [2]
    (line,) = made.said(0)
    assert line.startswith(f"peermask: cannot listen on {made.fleet.member(0).address}")


def test_an_address_that_is_not_up_yet_is_one_line_and_worth_a_restart(fleet):
    made = fleet(host="192.0.2.7")  # nobody's
    made.start(0)
    assert made.join(0) == [75]
    (line,) = made.said(0)
    assert line.startswith(f"peermask: cannot listen on {made.fleet.member(0).address}; is that this device's address")


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_a_fleet_on_ipv6_links_and_ends_as_the_simulator_does(fleet, tmp_path):
    config = tiny(agents=3)
    made = fleet(config, host="[::1]", missing="wait")
    made.start()
    assert made.join() == [0] * 3
    assert made.collect().hash == simulated(config, tmp_path / "sim").hash


@pytest.mark.parametrize("name", ["dsgd", "lottery-dsgd", "dis-pfl", "fl"])
def test_real_values_travel_over_real_sockets(fleet, tmp_path, name):
    config = tiny(algorithm={"name": name})
    made = fleet(config, missing="wait")
    made.start()
    assert made.join() == [0] * 4
    run, expected = made.collect(), simulated(config, tmp_path / "sim")
    for ours, theirs in zip(run.local_models(), expected.local_models(), strict=True):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert all(made.result(agent)["absent"] == {} for agent in range(4))


def two(rounds):
    return tiny(agents=2, rounds=rounds, graph={"name": "path"})


def test_an_agent_whose_reader_is_gone_saves_and_leaves(tmp_path):
    held = tiny_fleet(two(100_000))
    path = written(tmp_path, held)
    with ProcessFleet(path, held) as made:
        made.start(1)
        command = [sys.executable, "-m", "peermask", "node", str(path), "--agent", "0", "--out", str(made.out(0))]
        with subprocess.Popen([*command, "--events"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as agent:
            agent.stdout.readline()
            agent.stdout.close()
            assert agent.wait(60) == 128 + signal.SIGPIPE
            assert b"interrupted and saved" in agent.stderr.read()
        saved = max((made.out(0) / "checkpoints").iterdir())
        assert int(saved.stem.removeprefix("round-")) >= 1


@pytest.mark.long
def test_a_certificate_that_ends_during_the_run_ends_its_agent_saved(tmp_path):
    held = tiny_fleet(two(100_000), round_deadline=1.0)
    path = written(tmp_path, held)
    with ProcessFleet(path, held) as made:
        files, authority = Credentials.of(tmp_path / "certs", 0), authority_of(tmp_path / "certs")
        own = serialization.load_pem_private_key(files.key.read_bytes(), None)
        signed = sign_agent(0, "127.0.0.1", own, *authority, timedelta(seconds=20))  # type: ignore[arg-type, call-arg]
        files.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        made.start()
        made.until_round(1, 3)
        assert made.join(0) == [2]
        assert any("its certificate expires" in line for line in made.said(0))
        assert "has expired; its state is saved" in made.said(0)[-1]
        ended = made.reports(0)[-1]["round"]
        assert max((made.out(0) / "checkpoints").iterdir()).name == f"round-{ended:06d}.safetensors"
        made.until(1, lambda report: [a["neighbour"] for a in report["absent"]] == [0], "the absence of 0")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_is_worth_a_restart_and_nothing_is_lost(fleet, tmp_path):
    disk = tmp_path / "agent-0"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    made = fleet(two(100_000), pace=0.01)
    try:
        made.start()
        made.until_round(0, 3)
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(512))
        assert made.join(0) == [75]
        assert "No space left on device; nothing written before is lost" in made.said(0)[-1]
        assert list_checkpoints(disk / "checkpoints")
        (disk / "filler").unlink()
        before = made.reports(0)[-1]["round"]
        made.start(0)
        made.until_round(0, before + 2)
    finally:
        made.__exit__()
        subprocess.run(["umount", disk], check=True)
