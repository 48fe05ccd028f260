"""The command line as a user meets it: real processes, real files, real signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import peermask
from command_process import process
from commands import Call, Refused
from peermask import __main__ as command
from peermask.config.file import load_config
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment
from peermask.store.checkpoint import list_checkpoints

TINY = """
agents = 4
rounds = 6
batch_size = 8
retention = 0.3
graph = "ring"
[data]
fraction = 0.1
[model]
name = "mlp"
hidden = [12]
[evaluation]
every = 3
[checkpoint]
every = 2
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def test_run_show_and_list(config: Path, tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    code, out, err = call("run", config, "--out", run)
    assert (code, err) == (0, "")
    assert "mean" in out
    assert "worst" in out
    assert out.rstrip().endswith(str(run))
    code, out, _ = call("show", run)
    assert code == 0
    assert str(RunResult.open(run).hash) in out
    code, out, _ = call("list", "algorithms")
    assert code == 0
    assert "mce-pl" in out
    assert "aggregation_gain = 1.0" in out


def test_a_terminal_is_shown_how_far_a_run_is(
    config: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as to a terminal
    code, out, err = call("run", config, "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    bar = next(line for line in out.splitlines() if "6/6" in line)
    assert re.search(r"loss \d\.\d{3}  accuracy .* sent .*B", re.sub(r"\x1b\[[0-9;]*m", "", bar))


def test_plan_shows_the_whole_config_and_writes_nothing(
    config: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("plan", config)
    assert code == 0
    for word in ("directed links", "masked weights", "bytes per message", "gradient path", "memory", "score_init"):
        assert word in out
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--import", "os.path"], "plug-in os.path registers nothing"),
        (["--import", "numpy"], "plug-in numpy registers nothing"),
        (["--import", "./tiny.toml"], "tiny.toml is not a .py file; name one, or a module"),
        (["--device", "cuda:99"], "cuda"),
        (["--device", "gpu"], "'gpu' is not one of cpu, cuda, cuda:N, auto"),
        (["--chunk", "0"], "chunk"),
        (["--rounds", "3"], "--rounds"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    arguments: list[str], message: str, config: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused("run", config, *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


def test_damaged_data_is_named(tmp_path: Path, config: Path, call: Call) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"\x00\x00\x08\x03short")
    code, _, err = call("run", config, "--set", "dataset.name=fashion-mnist", "--set", f"dataset.folder='{tmp_path}'")
    assert code == 2
    assert str(tmp_path) in err
    assert err.count("\n") == 1


def test_a_folder_that_exists_is_left_alone(config: Path, tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    call("run", config, "--out", run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    code, _, err = call("run", config, "--out", run)
    assert code == 2
    assert f"--resume {run}" in err
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_resume_takes_no_other_config(config: Path, tmp_path: Path, call: Call) -> None:
    code, _, err = call("run", config, "--resume", tmp_path)
    assert code == 2
    assert "--resume uses the config in the run folder" in err


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.toml").write_text(TINY)
    return run_experiment(load_config(folder / "tiny.toml"), folder / "run").hash


@pytest.mark.parametrize("write", [1, 3, 5, 8])
def test_killed_at_any_moment_it_ends_with_the_same_hash(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: str, write: int
) -> None:
    """SIGKILL while a file is being written: no handler, no farewell."""
    monkeypatch.chdir(tmp_path)
    cut = process("run", config, "--out", "cut", signal=(signal.SIGKILL, write))
    assert cut.returncode == -signal.SIGKILL
    assert not (tmp_path / "cut" / "result.json").exists()
    again = ("--resume", "cut") if (tmp_path / "cut" / "config.toml").exists() else (config, "--out", "again")
    resumed = process("run", *again)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert RunResult.open(tmp_path / again[-1]).hash == whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_saves_and_says_how_to_go_on(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.chdir(tmp_path)
    stopped = process("run", config, "--set", "rounds=100000", "--out", "run", signal=(number, 5))
    assert stopped.returncode == 128 + number
    assert "peermask run --resume run" in stopped.stdout
    assert stopped.stderr == ""
    assert list_checkpoints(tmp_path / "run" / "checkpoints")


def test_ctrl_c_before_anything_is_imported_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def main(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "peermask.cli.main", Interrupted())  # type: ignore[arg-type]
    with pytest.raises(SystemExit) as stopped:
        command.main()
    assert stopped.value.code == 130


def test_a_full_disk_is_one_line(config: Path, call: Call) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tiny disk")
    with tiny_disk() as disk:
        code, _, err = call("run", config, "--set", "model.hidden=[400]", "--out", disk / "run")
    assert code == 75
    assert "No space left on device" in err
    assert "nothing written before is lost" in err
    assert err.count("\n") == 1


class tiny_disk:
    """A file system of 200 kB, mounted for a while."""

    def __enter__(self) -> Path:
        import tempfile

        self.path = Path(tempfile.mkdtemp())
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(self.path)], capture_output=True)
        if done.returncode:
            pytest.skip("cannot mount here")
        return self.path

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", str(self.path)], check=True)
        self.path.rmdir()


def test_brackets_in_a_path_are_no_markup(
    config: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peermask.cli.options.Interrupt.requested", lambda _: True)
    out = tmp_path / "b[red]c[/x] [lr=0.1]"
    _, said, _ = call("run", config, "--out", out)
    assert f"resume with: peermask run --resume {out}" in said
    assert f"resume with: peermask run --resume {out}" in call("show", out)[1]


def test_a_run_that_devices_made_is_not_gone_on_with_here(
    config: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peermask.cli.options.Interrupt.requested", lambda _: True)
    call("run", config, "--out", tmp_path / "run")
    (tmp_path / "run" / "absences.csv").touch()
    assert "resume with: peermask swarm FLEET" in call("show", tmp_path / "run")[1]
    code, _, err = call("run", "--resume", tmp_path / "run")
    assert (code, "was made by a fleet" in err) == (2, True)


def test_the_version(call: Call) -> None:
    assert call("--version")[1] == f"peermask {peermask.__version__}\n"


def test_two_runs_of_one_algorithm_are_told_apart(config: Path, tmp_path: Path, call: Call) -> None:
    _, said, _ = call("run", config, "--set", 'compare=[{name="mce-pl", lr=0.1}]', "--out", tmp_path / "run")
    assert "mce-pl against mce-pl-2:" in said
