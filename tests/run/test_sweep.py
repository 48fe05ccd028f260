"""Sweeps: every value with every seed, shared by processes, and the best by held-out data."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from pathlib import Path
from statistics import fmean, stdev

import pandas as pd
import pytest

from peermask.cli.main import main
from peermask.config.experiment import ExperimentConfig
from peermask.errors import ConfigError, RunError
from peermask.files import try_lock
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment
from peermask.run.sweep import Row, best, plan_sweep, split_values, spread, write_table

Small = Callable[..., ExperimentConfig]


@pytest.fixture
def config(small: Small, tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(small().toml())
    return path


def silent(done: int, total: int, name: str) -> None: ...


@pytest.mark.parametrize(
    ("vary", "settings"),
    [
        ("algorithm.lr=0.1, 0.3,1", ["algorithm.lr=0.1", "algorithm.lr=0.3", "algorithm.lr=1"]),
        ("graph.name=ring,complete", ['graph.name="ring"', 'graph.name="complete"']),
        ("model.hidden=[12],[24, 8]", ["model.hidden=[12]", "model.hidden=[24, 8]"]),
        ("data.flip=true,false", ["data.flip=true", "data.flip=false"]),
    ],
)
def test_values_are_split_at_their_commas(vary: str, settings: list[str]) -> None:
    assert split_values(vary) == settings


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ("algorithm.lr", "must be key=value,value"),
        ("algorithm.lr=", "must be key=value,value"),
        ("seed=1,2", "give --seeds"),
        ("rounds=3,3", "the same value twice"),
        ("algorithm.lr=0.1,fast", r"algorithm\.lr = 'fast'"),
        ("algorithm.speed=1,2", r"algorithm\.speed: unknown key"),
    ],
)
def test_what_cannot_be_varied_is_said_before_anything_runs(
    config: Path, tmp_path: Path, vary: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_sweep(tmp_path / "sweep", config, [], [vary], None)
    assert not (tmp_path / "sweep").exists()


def test_means_and_deviations_are_those_of_the_runs(small: Small, config: Path, tmp_path: Path) -> None:
    sweep = plan_sweep(tmp_path / "sweep", config, [], ["algorithm.lr=0.1,1.0"], [0, 1])
    sweep.run(Execution(), silent)
    assert sweep.missing == 0
    rows = sweep.rows()
    assert [(row.variation, row.seeds) for row in rows] == [("algorithm.lr=0.1", 2), ("algorithm.lr=1.0", 2)]
    alone = [
        run_experiment(small(algorithm={"name": "mce-pl", "lr": 0.1}, seed=seed), tmp_path / f"alone-{seed}")
        for seed in (0, 1)
    ]
    hashes = {RunResult.open(cell.path).hash for cell in sweep.cells if cell.variation == "algorithm.lr=0.1"}
    assert hashes == {result.hash for result in alone}
    held_out = [fmean(row["validation_accuracy"] for row in result.metrics()) for result in alone]
    assert rows[0].validation == pytest.approx(held_out)
    assert spread(rows[0].validation) == pytest.approx((fmean(held_out), stdev(held_out)))
    table = pd.read_csv(write_table(sweep.root, rows))
    assert list(table["variation"]) == ["algorithm.lr=0.1", "algorithm.lr=1.0"]
    assert table["test_accuracy"][1] == pytest.approx(fmean(rows[1].test), rel=1e-5)


def test_the_best_is_chosen_on_held_out_data_and_not_on_the_test() -> None:
    rows = [
        Row("a", "mce-pl", (0.5, 0.6), (0.9, 0.9), 1.0),
        Row("b", "mce-pl", (0.7, 0.6), (0.1, 0.1), 1.0),
        Row("c", "mce-pl", (float("nan"),), (1.0,), 1.0),
    ]
    chosen = best(rows)
    assert chosen is not None
    assert chosen.variation == "b"
    assert best(rows[2:]) is None
    assert isnan(spread((0.5,))[1])


def test_what_is_finished_or_anothers_is_not_run_and_more_can_be_added(config: Path, tmp_path: Path) -> None:
    told: list[str] = []
    first = plan_sweep(tmp_path / "sweep", config, [], ["algorithm.lr=0.1"], [0])
    first.run(Execution(), lambda done, total, name: told.append(f"{done} of {total}: {name}"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").rglob("*.csv")}
    more = plan_sweep(tmp_path / "sweep", config, [], ["algorithm.lr=0.1,0.3"], [0, 1])
    other = next(cell for cell in more.cells if cell.config.seed == 1 and cell.variation.endswith("0.1"))
    with try_lock(other.path.with_name(f".{other.path.name}.lock")):  # by another process
        more.run(Execution(), lambda done, total, name: told.append(f"{done} of {total}: {name}"))
    assert more.missing == 1
    more.run(Execution(), silent)
    assert more.missing == 0
    assert told == [
        "1 of 1: algorithm.lr=0.1, seed 0",
        "2 of 4: algorithm.lr=0.3, seed 0",
        "3 of 4: algorithm.lr=0.3, seed 1",
    ]
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_folder_of_something_else_is_left_alone(config: Path, tmp_path: Path) -> None:
    plan_sweep(tmp_path / "sweep", config, [], [], [0]).run(Execution(), silent)
    with pytest.raises(RunError, match="is a sweep of a config with batch_size = 8, not 9; give another --out"):
        plan_sweep(tmp_path / "sweep", config, ["batch_size=9"], [], [0]).run(Execution(), silent)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(RunError, match="exists and is not a sweep"):
        plan_sweep(tmp_path / "mine", config, [], [], [0]).run(Execution(), silent)


def test_the_command_goes_on_and_prints_table_and_best(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    command = ["run", str(config), "--set", 'compare=["ind-mask"]', "--vary", "algorithm.lr=0.1,1.0", "--seeds", "2"]
    for _ in range(2):  # the second time there is nothing left to run
        with pytest.raises(SystemExit) as stopped:
            main([*command, "--out", str(out)])
        said = capsys.readouterr().out
        assert not stopped.value.code
        assert "ind-mask" in said
        assert "best: algorithm.lr=" in said
        assert "on held-out data" in said
        assert said.rstrip().endswith(str(out))
    assert len(pd.read_csv(out / "sweep.csv")) == 4
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--resume", str(out), "--seeds", "2"])
    assert stopped.value.code == 2
    assert "rerun the same command to resume" in capsys.readouterr().err
