"""What can be wrong with ranks, as real processes: one line in all, exit code 2, and nothing is left running."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rank_process import RankRun

from commands import Refused
from peermask.config.experiment import ExperimentConfig

Small = Callable[..., ExperimentConfig]


def written(config: ExperimentConfig, folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(config.toml())
    return str(folder / "config.toml")


def one_line(ranks: RankRun, codes: list[int]) -> str:
    assert ranks.join() == codes, ranks.lines()
    (line,) = ranks.lines()
    return line


def of_another_version() -> None:
    import peermask.run.start as start

    start.version = lambda _: "0.0.1"  # type: ignore[assignment]


def test_more_ranks_than_agents(small: Small, tmp_path: Path) -> None:
    path = written(small(agents=2, retention=0.3, graph={"name": "complete"}), tmp_path)
    with RankRun(tmp_path, 3) as ranks:
        ranks.start("run", path, "--device", "cpu")
        assert "3 ranks and agents = 2" in one_line(ranks, [2] * 3)
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


def test_a_run_folder_in_use(small: Small, tmp_path: Path) -> None:
    path = written(small(), tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious.txt").write_text("mine")
    with RankRun(tmp_path, 2) as ranks:
        ranks.start("run", path, "--device", "cpu", "--out", "run")
        assert "is not a run folder" in one_line(ranks, [2, 2])


def test_a_diverging_run_says_so_once(small: Small, tmp_path: Path) -> None:
    path = written(small(algorithm={"name": "dsgd", "lr": 1e30}), tmp_path)
    with RankRun(tmp_path, 2) as ranks:
        ranks.start("run", path, "--device", "cpu", "--out", "run")
        assert "try a smaller algorithm.lr" in one_line(ranks, [2, 2])


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


def test_nccl_without_gpus(small: Small, tmp_path: Path) -> None:
    path = written(small(), tmp_path)
    with RankRun(tmp_path, 2) as ranks:
        ranks.start("run", path, "--device", "cpu", "--backend", "nccl")
        assert "--backend nccl: rank 0 (process" in one_line(ranks, [2, 2])


RANK = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--processes", "0"], {}, "processes"),
        (["--processes", "2", "--seeds", "2"], {}, "start the same command several times"),
        (["--processes", "2"], RANK, "this is rank 1 of 2 already"),
        (["--seeds", "2"], RANK, "--processes, torchrun and --tensorboard are for one run"),
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
