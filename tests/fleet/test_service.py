"""The unit that `fleet service` writes is one that systemd reads as meant."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fleet_cases import refused, tiny_fleet, written

from peermask.errors import NodeError
from peermask.fleet.service import ServiceLimits, unit
from waiting import PATIENCE


def test_the_unit_runs_the_agent_and_may_write_its_folder_alone(call, tmp_path):
    path = written(tmp_path, tiny_fleet())
    command = ["fleet", "service", path, "--agent", 3, "--folder", "/home/pi/fleet", "--command", "/opt/peermask"]
    code, out, _ = call(*command, "--metrics", 9464)
    read = configparser.ConfigParser(strict=True, interpolation=None)
    read.read_string(out)
    assert code == 0
    service = read["Service"]
    assert service["ExecStart"] == "/opt/peermask node fleet.toml --agent 3 --metrics 9464"
    assert service["WorkingDirectory"] == service["ReadWritePaths"] == "/home/pi/fleet"
    assert (service["ProtectSystem"], service["PrivateDevices"], service["NoNewPrivileges"]) == ("strict", "yes", "yes")
    assert (service["RestartPreventExitStatus"], service["SuccessExitStatus"]) == ("2", "143")
    assert "PrivateDevices" not in call(*command, "--device", "cuda")[1]
    assert "agent 4 does not exist" in refused(call("fleet", "service", path, "--agent", 4))
    (tmp_path / "a.service").write_text("mine")
    assert "exists; give another --out" in refused(call(*command, "--out", tmp_path / "a.service"))


def test_limits_of_memory_and_cpu_are_written_and_checked(call, tmp_path):
    path = written(tmp_path, tiny_fleet())
    command = ["fleet", "service", path, "--agent", 3]
    out = call(*command, "--memory-max", "512M", "--cpu-quota", "150%")[1]
    assert "\nMemoryMax=512M\nCPUQuota=150%\n" in out
    assert "MemoryMax" not in call(*command)[1]
    for option, value in (
        ("--memory-max", "lots"),
        ("--memory-max", "512"),
        ("--memory-max", "1M\nUser=root"),
        ("--cpu-quota", "0.8"),
    ):
        assert f"{option} {value!r} is not a" in refused(call(*command, option, value))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("gpu", [False, True])
def test_systemd_finds_nothing_wrong(tmp_path, gpu):
    text = unit(
        3,
        "root",
        tmp_path,
        Path(sys.executable),
        ["fleet 100%.toml", "--import", 'a "b" $c'],
        gpu=gpu,
        limits=ServiceLimits("512M", "80%"),
    )
    (tmp_path / "peermask-agent.service").write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "peermask-agent.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


def test_words_that_a_unit_cannot_hold(tmp_path):
    with pytest.raises(NodeError, match=r"--user 'a b'"):
        unit(0, "a b", tmp_path, tmp_path, [])
    with pytest.raises(NodeError, match=r"is not an absolute path"):
        unit(0, "pi", Path("fleet"), tmp_path, [])
    with pytest.raises(NodeError, match=r"does not allow in a path"):
        unit(0, "pi", tmp_path / "my fleet", tmp_path, [])
    with pytest.raises(NodeError, match=r"does not allow"):
        unit(0, "pi", tmp_path, tmp_path, ["two\nlines"])
    assert '"a b" 50%% $$HOME' in unit(0, "pi", tmp_path, tmp_path, ["a b", "50%", "$HOME"])
