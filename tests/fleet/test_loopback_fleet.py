"""Real fleets on this machine, with mutual TLS: killed, frozen, stopped, misconfigured; they always end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from fleet_cases import PATIENT, simulated, tiny, tiny_fleet, written
from fleet_process import ProcessFleet, command_process

from machine import forkserver, has_ipv6
from peermask.fleet.authority import open_authority
from peermask.fleet.certificates import sign_agent
from peermask.fleet.credentials import Credentials, load_key
from peermask.store.checkpoint import list_checkpoints

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and signalled as on Linux")


def two(rounds):
    return tiny(agents=2, rounds=rounds, graph={"name": "path"})


def test_eight_agents_killed_and_frozen_end_as_if_nothing_had_happened(processes, tmp_path):
    """With `wait` nobody goes on without the others, so the result is the simulator's, bit for bit."""
    config = tiny(agents=8, rounds=16)
    made = processes(config, missing="wait")
    made.hold(8)
    made.start()
    made.until_round(5, 4)
    made.kill(5)
    made.start(5)
    made.until_round(2, 8)
    made.send(2, signal.SIGSTOP)
    made.until_round(0, 9)  # it is no neighbour of 2
    made.kill(0)
    made.start(0)
    made.send(2, signal.SIGCONT)
    made.release()
    assert made.join() == [0] * 8
    assert made.collect().hash == simulated(config, tmp_path / "sim").hash
    assert all(made.result(agent)["absent"] == {} for agent in range(8))


def absent(agent):
    return lambda report: agent in [absence["neighbour"] for absence in report["absent"]]


def test_with_last_the_others_go_on_and_the_lost_come_back(processes):
    made = processes(tiny(rounds=100_000), round_deadline=1.0)  # which the frozen one costs
    made.hold(3)
    made.start()
    made.until_round(0, 3)
    made.kill(1)
    made.until(0, absent(1), "the absence of 1")
    made.kill(3)
    shutil.rmtree(made.out(3), ignore_errors=True)  # whoever has lost its disk joins late
    made.until(0, absent(3), "the absence of 3")
    made.until_round(2, made.reports(0)[-1]["round"] + 2)
    reached = made.reports(2)[-1]["round"]
    made.start(1, 3)
    for agent in (1, 3):
        made.until(agent, lambda report: report["round"] >= reached, "those at work")
        made.until_said(agent, "the fleet is in round")
    before = len(made.reports(2))
    made.until(2, lambda report: not report["absent"], "everybody", since=before)
    made.send(3, signal.SIGSTOP)
    before = len(made.reports(2))
    made.until(2, absent(3), "the silence of 3", since=before)
    made.send(3, signal.SIGCONT)
    woken = {agent: len(made.reports(agent)) for agent in (3, 2)}
    for agent, before in woken.items():
        made.until(agent, lambda report: not report["absent"], "everybody again", since=before)
    for agent in range(4):
        made.send(agent, signal.SIGTERM)
    made.release()
    assert made.join() == [128 + signal.SIGTERM] * 4
    assert any("agent 1 was missing in" in line for line in made.said(0))
    assert any("agent 3 is back" in line for line in made.said(2))
    assert made.collect(partial=True).status == "unfinished"


def test_sigterm_finishes_the_round_saves_and_leaves(processes):
    made = processes(two(100))
    made.hold(3)
    made.start()
    for agent in (0, 1):
        made.until_round(agent, 3)
        made.send(agent, signal.SIGTERM)
    made.release()
    assert made.join() == [128 + signal.SIGTERM] * 2
    for agent in (0, 1):
        assert any("interrupted and saved" in line for line in made.said(agent))
        saved = max((made.out(agent) / "checkpoints").iterdir()).name
        assert saved == f"round-{made.reports(agent)[-1]['round']:06d}.safetensors"


@pytest.mark.parametrize(
    ("edited", "differs"), [({"experiment": tiny(seed=7)}, "config hash"), ({"round_deadline": 7.0}, "fleet file")]
)
def test_a_fleet_file_edited_on_one_device_is_refused_with_a_line_on_both_sides(processes, tmp_path, edited, differs):
    made = processes()
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
    held = tiny_fleet(two(3), **PATIENT)
    with ProcessFleet(written(tmp_path, held), held, insecure=True) as made:
        made.start()
        assert made.join() == [0, 0]
        (line,) = made.said(0)
        assert line.startswith(f"agent 0: INSECURE: anyone who can connect to {held.member(0).address} can read")
        made.insecure = False
        made.start(0)
        assert made.join(0) == [2]
        assert "agent 0 has no certificate" in made.said(0)[-1]


def test_a_port_in_use_is_one_line(processes):
    made = processes()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(made.fleet.member(0).address.rpartition(":")[2])))
        taken.listen()
        made.start(0)
        assert made.join(0) == [2]
    (line,) = made.said(0)
    assert line.startswith(f"peermask: cannot listen on {made.fleet.member(0).address}")


def test_an_address_that_is_not_up_yet_is_one_line_and_worth_a_restart(processes):
    made = processes(host="192.0.2.7")  # nobody's
    made.start(0)
    assert made.join(0) == [75]
    (line,) = made.said(0)
    assert line.startswith(f"peermask: cannot listen on {made.fleet.member(0).address}; is that this device's address")


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_fleet_on_ipv6_links_and_ends_as_the_simulator_does(processes, tmp_path):
    config = tiny(agents=3)
    made = processes(config, host="[::1]", missing="wait")
    made.start()
    assert made.join() == [0] * 3
    assert made.collect().hash == simulated(config, tmp_path / "sim").hash


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("dis-pfl", "float16"),
        ("fl", None),
        pytest.param("dsgd", "float16", marks=pytest.mark.long),
        pytest.param("lottery-dsgd", None, marks=pytest.mark.long),
    ],
)
def test_real_values_travel_over_real_sockets(processes, tmp_path, name, values):
    config = tiny(agents=3, algorithm={"name": name}, **({"exchange": {"values": values}} if values else {}))
    made = processes(config, missing="wait")
    made.start()
    assert made.join() == [0] * 3
    run, expected = made.collect(), simulated(config, tmp_path / "sim")
    for ours, theirs in zip(run.local_models(), expected.local_models(), strict=True):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert all(made.result(agent)["absent"] == {} for agent in range(3))


def test_an_agent_whose_reader_is_gone_saves_and_leaves(processes):
    made = processes(two(100_000))
    made.hold(3, 1)
    made.start(1)
    (out, stdout), (err, stderr), (turns, _) = pipes = [forkserver().Pipe(duplex=False) for _ in range(3)]
    command = ["node", str(made.path), "--agent", "0", "--out", str(made.out(0)), "--events"]
    agent = forkserver().Process(target=command_process, args=(command, (stdout, stderr), turns))
    agent.start()
    for one in (stdout, stderr):
        one.close()
    with os.fdopen(os.dup(out.fileno())) as lines:
        lines.readline()
    out.close()
    with os.fdopen(os.dup(err.fileno())) as lines:
        assert "interrupted and saved" in lines.read()
    agent.join()
    assert agent.exitcode == 128 + signal.SIGPIPE
    assert list_checkpoints(made.out(0) / "checkpoints")
    for one in chain(*pipes):
        one.close()


@pytest.mark.long
def test_a_certificate_that_ends_during_the_run_ends_its_agent_saved(processes, tmp_path):
    made = processes(two(100_000))
    files, authority = Credentials.of(tmp_path / "certs", 0), open_authority(tmp_path / "certs")
    own = load_key(files.key).public_key()
    signed = sign_agent("agent-0", "127.0.0.1", own, authority, timedelta(seconds=20))
    files.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    made.hold(3)
    made.start()
    made.until_round(1, 3)
    made.until_said(0, "its certificate expires")
    made.until_true(lambda: datetime.now(UTC) > signed.not_valid_after_utc, "the end of the certificate")
    made.release(0)
    assert made.join(0) == [2]
    assert "has expired; its state is saved" in made.said(0)[-1]
    ended = made.reports(0)[-1]["round"]
    assert max((made.out(0) / "checkpoints").iterdir()).name == f"round-{ended:06d}.safetensors"
    made.until(1, absent(0), "the absence of 0")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_is_worth_a_restart_and_nothing_is_lost(processes, tmp_path):
    disk = tmp_path / "agent-0"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    made = processes(two(100_000))
    try:
        made.hold(3)
        made.start()
        made.until_round(0, 3)
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(512))
        made.hold(6)
        assert made.join(0) == [75]
        assert "No space left on device; nothing written before is lost" in made.said(0)[-1]
        assert list_checkpoints(disk / "checkpoints")
        (disk / "filler").unlink()
        made.start(0)
        made.until(0, lambda report: report["round"] > 6, "the rounds after it")
    finally:
        made.__exit__()
        subprocess.run(["umount", disk], check=True)
