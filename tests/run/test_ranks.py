"""Runs divided between real processes end as in one; every mistake is one line in all, and nothing is left running."""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_process import RankRun, assert_same

from commands import Call, Refused, Small
from peermask.compute.winograd import winograd_pays
from peermask.config.experiment import ExperimentConfig
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.runner import resume_experiment, run_experiment
from peermask.store.checkpoint import list_checkpoints
from plugin_state import forget_plugins
from waiting import PATIENCE, until

ON_CPU = Execution(device="cpu", workers=1)


def written(config: ExperimentConfig, folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(config.toml())
    return str(folder / "config.toml")


def five(small: Small, **changes: Any) -> ExperimentConfig:
    return small(**{"agents": 5, "retention": 0.3, "rounds": 7, "evaluation": {"every": 2, "unmixed": True}, **changes})


@pytest.mark.parametrize("schedule", [None, "matching"])
def test_two_then_three_then_one(small: Small, tmp_path: Path, schedule: str | None) -> None:
    """A checkpoint of any number of ranks, whose shards differ in size, goes on with any other, and all that is written
    is what one process writes."""
    config = five(small, rounds=8, schedule=schedule)
    whole = run_experiment(config, tmp_path / "whole", execution=ON_CPU)
    path = written(config.model_copy(update={"rounds": 4}), tmp_path)
    for size, arguments in ((2, [path, "--out", "run"]), (3, ["--resume", "run", "--set", "rounds=6"])):
        with RankRun(tmp_path, size) as ranks:
            ranks.start("run", "--device", "cpu", *arguments)
            assert ranks.join() == [0] * size, ranks.lines()
    alone = resume_experiment(tmp_path / "run", ON_CPU, ["rounds=8"])
    assert (alone.status, alone.hash, alone.sent_bytes) == (whole.status, whole.hash, whole.sent_bytes)
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_any_rank_saves_and_ends_all(small: Small, tmp_path: Path, rank: int) -> None:
    path = written(five(small, rounds=10**5, checkpoint={"every": 10**5}), tmp_path)
    with RankRun(tmp_path, 2) as ranks:
        ranks.start("run", path, "--device", "cpu", "--out", "run")
        ranks.until((tmp_path / "run" / "metrics.csv").exists)
        ranks.signal(rank, signal.SIGTERM)
        assert ranks.join() == [128 + signal.SIGTERM] * 2
        assert ranks.lines() == []
    assert len(list_checkpoints(tmp_path / "run" / "checkpoints")) == 1


@pytest.fixture(scope="module")
def long(small: Small, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run that there is time to kill, alone."""
    config = five(small, rounds=80, evaluation={"every": 50}, checkpoint={"every": 10})
    return run_experiment(config, tmp_path_factory.mktemp("long") / "whole", execution=ON_CPU)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_named_and_nothing_is_lost(long: RunResult, tmp_path: Path, victim: int) -> None:
    path = written(long.config, tmp_path)
    with RankRun(tmp_path, 3) as ranks:
        ranks.start("run", path, "--device", "cpu", "--out", "run")
        ranks.until(lambda: any((tmp_path / "run").glob("checkpoints/round*")))
        ranks.signal(victim, signal.SIGKILL)
        codes = ranks.join()
        assert codes[victim] == -signal.SIGKILL
        assert [code for rank, code in enumerate(codes) if rank != victim] == [75, 75]
        (line,) = ranks.lines()
    assert f"rank {victim} (process" in line
    assert "died; what was saved is whole: go on with `peermask run --resume run`" in line
    with RankRun(tmp_path, 2) as ranks:
        ranks.start("run", "--device", "cpu", "--resume", "run")
        assert ranks.join() == [0, 0], ranks.lines()
    assert RunResult.open(tmp_path / "run").hash == long.hash
    assert_same(tmp_path / "run", long.folder.path)


@pytest.mark.long
def test_torchrun_starts_again_what_was_killed(long: RunResult, tmp_path: Path) -> None:
    run, script = tmp_path / "run", tmp_path / "once.py"
    # Rank 1 kills itself once, in round 15; the first checkpoint is that of round 10.
    script.write_text(
        "import itertools, os, signal\n"
        "from peermask.cli.main import main\n"
        "from peermask.run.rank_group import Ranks\n"
        "rounds, usual = itertools.count(1), Ranks.any\n"
        "def kill_in_round_15(ranks, wanted):\n"
        "    if next(rounds) == 15:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return usual(ranks, wanted)\n"
        "if os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    Ranks.any = kill_in_round_15\n"
        "main(['run', 'config.toml', '--device', 'cpu', '--out', 'run'])\n"
    )
    written(long.config, tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    done = subprocess.run(
        [*command, "--monitor-interval", "0.1", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1 (process" in done.stderr
    assert RunResult.open(run).hash == long.hash
    assert_same(run, long.folder.path)


WIDE = """
from torch import nn
from peermask.plugin import models

@models.register("wide")
def wide(shape, classes):
    first, second = nn.Conv2d(shape[0], 32, 3, padding=1), nn.Conv2d(32, 64, 5, padding=2)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(256, classes))
"""


def test_a_convolution_by_winograd_has_the_same_bits_in_any_thread_and_process(tmp_path: Path, call: Call) -> None:
    assert winograd_pays(torch.zeros(192, 32, 8, 8), torch.zeros(64, 32, 5, 5), (2, 2))
    (tmp_path / "wide.py").write_text(WIDE)
    settings = ["agents=2", "rounds=2", "batch_size=192", "retention=0.5", "model=wide", "compare=[]"]
    words = [word for setting in settings for word in ("--set", setting)]
    runs = {"alone": ("--workers", 1), "threads": ("--workers", 2), "processes": ("--processes", 2)}
    for name, how in runs.items():
        begun = call("run", *words, "--import", tmp_path / "wide.py", "--device", "cpu", *how, "--out", tmp_path / name)
        assert begun[::2] == (0, "")
    assert len({RunResult.open(tmp_path / name).hash for name in runs}) == 1
    forget_plugins()


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "peermask", "run"]
PROCESSES = [sys.executable, "-m", "peermask", "run", "--processes", "2"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "file"),
    [
        pytest.param(PROCESSES, "config.toml", id="before the ranks have met"),
        pytest.param(PROCESSES, "run/metrics.csv", id="in a round"),
        pytest.param(TORCHRUN, "run/metrics.csv", id="torchrun"),
    ],
)
def test_no_rank_outlives_its_parent(small: Small, tmp_path: Path, command: list[str], file: str) -> None:
    """The first process is killed once it has started another and a file exists."""
    path = written(five(small, rounds=10**5), tmp_path)
    with subprocess.Popen([*command, path, "--device", "cpu", "--out", "run"], cwd=tmp_path, **QUIET) as first:
        until(lambda: first.poll() is not None or (ranks_of(first.pid) and (tmp_path / file).exists()))
        assert first.poll() is None, "it has ended"
        descriptors = [os.pidfd_open(rank) for rank in ranks_of(first.pid)]
        first.kill()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], PATIENCE)[0], "a rank is left"
        os.close(descriptor)


QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def ranks_of(process: int) -> list[int]:
    """The processes that it started as ranks."""
    started = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    lines = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in started}
    return [pid for pid, line in lines.items() if b"spawn_main" in line or b"peermask" in line]


@pytest.mark.long
def test_ctrl_c_reaches_all_processes_and_saves(small: Small, tmp_path: Path) -> None:
    """A terminal sends it to every process of the group."""
    path = written(five(small, rounds=10**5, checkpoint={"every": 10**5}), tmp_path)
    arguments: dict[str, Any] = {"cwd": tmp_path, "stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    command = [*PROCESSES, path, "--device", "cpu", "--out", "run"]
    with subprocess.Popen(command, start_new_session=True, **arguments) as first:
        until(lambda: first.poll() is not None or (tmp_path / "run" / "metrics.csv").exists())
        assert first.poll() is None, "it has ended"
        os.killpg(first.pid, signal.SIGINT)
        assert first.communicate()[1] == b""
    assert first.returncode == 128 + signal.SIGINT
    assert len(list_checkpoints(tmp_path / "run" / "checkpoints")) == 1


def one_line(ranks: RankRun, codes: list[int]) -> str:
    assert ranks.join() == codes, ranks.lines()
    (line,) = ranks.lines()
    return line


def of_another_version() -> None:
    import peermask.run.start as start

    start.version = lambda _: "0.0.1"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("changes", "options", "size", "said"),
    [
        ({"agents": 2, "retention": 0.3, "graph": {"name": "complete"}}, [], 3, "3 ranks and agents = 2"),
        ({}, ["--out", "taken"], 2, "is not a run folder"),
        ({"algorithm": {"name": "dsgd", "lr": 1e30}}, ["--out", "run"], 2, "try a smaller algorithm.lr"),
        ({}, ["--backend", "nccl"], 2, "--backend nccl: rank 0 (process"),
    ],
)
def test_a_mistake_of_all_ranks(
    small: Small, tmp_path: Path, changes: dict[str, Any], options: list[str], size: int, said: str
) -> None:
    path = written(small(**changes), tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "precious.txt").touch()
    with RankRun(tmp_path, size) as ranks:
        ranks.start("run", path, "--device", "cpu", *options)
        assert said in one_line(ranks, [2] * size)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("case", ["config", "version", "data"])
def test_ranks_that_differ(small: Small, tmp_path: Path, case: str) -> None:
    """Both are named, with what they have."""
    dataset = {"name": "npz", "path": "data.npz"} if case == "data" else {"name": "digits"}
    folders = [tmp_path / "here", tmp_path / "there"]
    for number, folder in enumerate(folders):
        config = small(dataset=dataset, data={}, rounds=5 if case == "config" and number else 4)
        written(config, folder)
        draw = np.random.default_rng(number)
        images = draw.integers(0, 255, (60, 1, 6, 6), dtype=np.uint8)
        labels = np.arange(60, dtype=np.int64) % 3
        np.savez(folder / "data.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    with RankRun(tmp_path, 2) as ranks:
        for rank, folder in enumerate(folders):
            begin = of_another_version if case == "version" and rank else None
            ranks.start("run", "config.toml", "--device", "cpu", ranks=[rank], folder=folder, begin=begin)
        line = one_line(ranks, [2, 2])
    assert "rank 0 (process" in line
    assert "rank 1 (process" in line
    assert {"config": "config ", "version": "peermask 0.0.1", "data": "data "}[case] in line
    assert not any((folder / "runs").exists() for folder in folders)


def test_what_only_one_rank_cannot_do_ends_all(small: Small, tmp_path: Path) -> None:
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        written(small(), folder)
    (folders[1] / "config.toml").unlink()
    with RankRun(tmp_path, 2) as ranks:
        for rank, folder in enumerate(folders):
            ranks.start("run", "config.toml", "--device", "cpu", "--wait", "1", ranks=[rank], folder=folder)
        assert ranks.join() == [2, 2]
        missed, absent = ranks.lines()  # the second never came
    assert "1 of 2 ranks did not connect" in missed
    assert "config file config.toml does not exist" in absent


@pytest.mark.parametrize("present", [0, 1])
def test_a_meeting_that_nobody_comes_to(small: Small, tmp_path: Path, present: int) -> None:
    path = written(small(), tmp_path)
    with RankRun(tmp_path, 2) as ranks:
        ranks.start("run", path, "--wait", "0.5", "--device", "cpu", ranks=[present])
        line = one_line(ranks, [2])
    wanted = (
        "1 of 2 ranks did not connect to 127.0.0.1:" if present == 0 else "rank 1 did not reach rank 0 at 127.0.0.1:"
    )
    assert wanted in line
    assert "within 0.5 s" in line


def test_a_meeting_point_that_is_taken(small: Small, tmp_path: Path) -> None:
    path = written(small(), tmp_path)
    with RankRun(tmp_path, 2) as ranks, socket.create_server(("0.0.0.0", 0)) as taken:
        ranks.port = taken.getsockname()[1]
        ranks.start("run", path, "--device", "cpu", ranks=[0])
        assert "rank 0 cannot open the rendezvous" in one_line(ranks, [2])


RANK = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--processes", "0"], {}, "processes"),
        (["--processes", "2"], RANK, "this is rank 1 of 2 already"),
        (["--seeds", "2"], RANK, "a sweep runs neither under torchrun nor with --tensorboard"),
        ([], {**RANK, "TORCHELASTIC_MAX_RESTARTS": "3"}, "give --out"),
        ([], {**RANK, "RANK": "2"}, "RANK = 2 and WORLD_SIZE = 2"),
        ([], {**RANK, "WORLD_SIZE": "two"}, "WORLD_SIZE = 'two'"),
        (["--backend", "mpi"], {}, "backend"),
        (["--processes", "2", "--device", "cuda:7"], {}, "cuda:7"),
    ],
)
def test_command_lines(
    arguments: list[str], environment: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert said in refused("run", *arguments)


PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()


def run_text(text: str) -> None:
    exec(compile(text, "docs/scale.md", "exec"), {})


def test_the_python_of_the_page(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process, and in two ranks: the same result."""
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / "experiment.toml").write_text(small().toml())
    with RankRun(folders[1], 2) as ranks:
        ranks.start(text, work=run_text)
        monkeypatch.chdir(folders[0])
        run_text(text)
        assert ranks.join() == [0, 0], ranks.lines()
    one, two = (RunResult.open(folder / "runs" / "python") for folder in folders)
    assert one.hash == two.hash


@pytest.mark.long
def test_the_commands_of_the_page(small: Small, tmp_path: Path) -> None:
    """Those for one machine, in the order of the page."""
    (tmp_path / "experiment.toml").write_text(small().toml())
    found = re.findall(r"(?:^    peermask|^    torchrun|`torchrun)[^`#\n]* run [^`#\n]*", PAGE, re.MULTILINE)
    commands = [command.strip("` ") for command in found]
    assert len(commands) == 3
    for command in commands:
        name, *arguments = shlex.split(command)
        module = {"peermask": "peermask", "torchrun": "torch.distributed.run"}[name]
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    runs = [RunResult.open(path.parent) for path in tmp_path.glob("runs/*/manifest.json")]
    assert len(runs) == 3
    assert len({run.hash for run in runs}) == 1
