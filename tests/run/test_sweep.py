"""Sweeps: every value with every seed, shared by processes, and the best by held-out data."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from statistics import fmean, stdev

import pandas as pd
import pytest

from commands import Call, Small
from peermask.errors import ConfigError, RunError
from peermask.files import try_lock, write_json
from peermask.run.execution import Execution
from peermask.run.jobs import open_sweep, plan_sweep, split_values
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment
from peermask.store.folder import read_result
from peermask.store.sweeps import SweepFolder, SweepRow, SweepRun, best_rows, spread


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
        ("algorithm.lr=0.1,0.3 --vary algorithm.lr=1", "is given twice; give all values at once"),
        ("algorithm.lr=0.1,fast", r"algorithm\.lr = 'fast'"),
        ("algorithm.speed=1,2", r"algorithm\.speed: unknown key"),
    ],
)
def test_what_cannot_be_varied_is_said_before_anything_runs(
    config: Path, tmp_path: Path, vary: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_sweep(tmp_path / "sweep", config, [], vary.split(" --vary "), None)
    assert not (tmp_path / "sweep").exists()


def test_means_and_deviations_are_those_of_the_runs(small: Small, config: Path, tmp_path: Path) -> None:
    plan_sweep(tmp_path / "sweep", config, [], ["algorithm.lr=0.1,1.0"], [0, 1]).run(Execution(), silent)
    sweep = SweepFolder.open(tmp_path / "sweep")
    assert sweep.missing == 0
    rows = sweep.rows
    assert [(row.variation, row.seeds) for row in rows] == [("algorithm.lr=0.1", 2), ("algorithm.lr=1.0", 2)]
    alone = [
        run_experiment(small(algorithm={"name": "mce-pl", "lr": 0.1}, seed=seed), tmp_path / f"alone-{seed}")
        for seed in (0, 1)
    ]
    hashes = {RunResult.open(sweep.root / run.path).hash for run in sweep.runs if run.variation == "algorithm.lr=0.1"}
    assert hashes == {result.hash for result in alone}
    held_out = [fmean(row["validation_accuracy"] for row in result.metrics()) for result in alone]
    assert rows[0].validation == pytest.approx(held_out)
    assert spread(rows[0].validation) == pytest.approx((fmean(held_out), stdev(held_out)))
    table = pd.read_csv(sweep.write_table())
    assert list(table["variation"]) == ["algorithm.lr=0.1", "algorithm.lr=1.0"]
    assert list(table["algorithm.lr"]) == [0.1, 1.0]
    assert table["test_accuracy"][1] == pytest.approx(fmean(rows[1].test), rel=1e-5)


def row(lr: float | None, place: int, validation: tuple[float, ...], test: float = 0.5) -> SweepRow:
    settings = () if lr is None else (f"algorithm.lr={lr}",)
    run = SweepRun(settings=settings, place=place, algorithm="mce-pl" if place == 0 else "ind-mask", seed=0)
    return SweepRow((run,), {}, validation, (test,), 1.0)


def test_variations_on_different_data_are_not_compared() -> None:
    runs = [
        SweepRun(settings=(f"agents={agents}", f"algorithm.lr={lr}"), place=0, algorithm="mce-pl", seed=0)
        for agents in (4, 8)
        for lr in (0.1, 0.3)
    ]
    rows = [SweepRow((run,), {}, (float(place),), (0.5,), 1.0) for place, run in enumerate(runs)]
    assert [best.variation for best in best_rows(rows)] == ["agents=4, algorithm.lr=0.3", "agents=8, algorithm.lr=0.3"]
    assert best_rows(rows[::2]) == []


def test_the_best_is_chosen_on_held_out_data_among_variations_of_an_algorithm() -> None:
    nan = float("nan")
    rows = [row(0.1, 0, (0.5, 0.6), 0.9), row(0.3, 0, (0.7, 0.6), 0.1), row(1.0, 0, (nan,), 1.0), row(None, 1, (0.9,))]
    assert [best.variation for best in best_rows(rows)] == ["algorithm.lr=0.3"]  # the key does not touch ind-mask
    assert best_rows(rows[1:]) == []  # one variation is no choice
    assert isnan(spread((0.5,))[1])
    assert str(spread((nan, nan))) == "(nan, nan)"  # two seeds, and nothing is held out
    assert spread((0.5, nan, 1.5)) == (1.0, pytest.approx(0.5**0.5))


def test_an_algorithm_that_a_key_does_not_touch_is_run_once(config: Path, tmp_path: Path) -> None:
    compared = ['compare=["ind-mask"]']
    sweep = plan_sweep(tmp_path / "sweep", config, compared, ["algorithm.lr=0.1,0.3", "retention=0.2,0.8"], [0, 1])
    of_ind_mask = [run for run in sweep.runs if run.algorithm == "ind-mask"]
    assert len(sweep.runs) == 2 * (4 + 2)
    assert [(run.settings, run.seed) for run in of_ind_mask] == [
        ((f"retention={p}",), seed) for seed in (0, 1) for p in (0.2, 0.8)
    ]
    renamed = plan_sweep(tmp_path / "sweep", config, compared, ["algorithm.name=dsgd,ind-mask"], None)
    assert [(run.variation, run.algorithm) for run in renamed.runs] == [
        ("algorithm.name=dsgd", "dsgd"), ("", "ind-mask"), ("algorithm.name=ind-mask", "ind-mask"),
    ]  # fmt: skip


def test_what_is_finished_or_anothers_is_not_run_and_more_can_be_added(config: Path, tmp_path: Path) -> None:
    told: list[str] = []

    def tell(done: int, total: int, name: str) -> None:
        told.append(f"{done} of {total}: {name}")

    root = tmp_path / "sweep"
    plan_sweep(root, config, [], ["algorithm.lr=0.1"], [0]).run(Execution(), tell)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*.csv")}
    more = plan_sweep(root, config, [], ["algorithm.lr=0.1,0.3"], [0, 1])
    other = root / next(run for run in more.runs if run.seed == 1 and run.variation.endswith("0.1")).path
    with try_lock(other.with_name(f".{other.name}.lock")):  # by another process
        more.run(Execution(), tell)
    assert SweepFolder.open(root).missing == 1
    open_sweep(root).run(Execution(), silent)
    plan_sweep(root, config, [], ["batch_size=4"], [0]).run(Execution(), silent)
    whole = SweepFolder.open(root)
    assert whole.missing == 0
    assert told == [
        "0 of 1: algorithm.lr=0.1, mce-pl, seed 0",
        "1 of 4: algorithm.lr=0.3, mce-pl, seed 0",
        "2 of 4: algorithm.lr=0.3, mce-pl, seed 1",
    ]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    usual = whole.config["algorithm"]["lr"], whole.config["batch_size"]
    assert [tuple(row.values.values()) for row in whole.rows] == [  # another key keeps old rows
        ("0.1", str(usual[1])), ("0.3", str(usual[1])), (str(usual[0]), "4"),
    ]  # fmt: skip
    assert not list(root.rglob(".seed*.lock"))


def test_what_a_killed_process_leaves_is_no_obstacle(config: Path, tmp_path: Path, call: Call) -> None:
    root = tmp_path / "sweep"
    root.mkdir()
    (root / ".sweep.lock").touch()  # killed before sweep.json, or another process that begins just now
    plan_sweep(root, config, [], ["algorithm.lr=0.1"], [0]).run(Execution(), silent)
    begun = SweepFolder.add(root, SweepFolder.open(root).config, plan_sweep(root, config, [], [], [1]).runs)
    for run in begun.runs[1:]:
        with try_lock((root / run.path).with_name(f".seed-{run.seed}.lock")):  # killed before the run's folder
            pass
    assert call("runs", "delete", "--yes", root)[0] == 0
    assert not root.exists()


def test_a_run_that_diverges_is_a_result(config: Path, tmp_path: Path) -> None:
    root, told = tmp_path / "sweep", []
    for _ in range(2):
        plan = plan_sweep(root, config, ["algorithm=dsgd"], ["algorithm.lr=0.1,1e30"], None)
        plan.run(Execution(), lambda _done, _total, name: told.append(name))
    assert len(told) == 2  # nothing is run again
    sweep = SweepFolder.open(root)
    assert [(row.seeds, row.diverged) for row in sweep.rows] == [(1, 0), (0, 1)]
    (line,) = sweep.diverged()
    assert line.startswith("algorithm.lr=1e+30, dsgd, seed 0: the loss")
    assert pd.read_csv(sweep.write_table())["diverged"].tolist() == [0, 1]


def test_a_folder_of_something_else_is_left_alone(config: Path, tmp_path: Path) -> None:
    root = tmp_path / "sweep"
    plan_sweep(root, config, [], [], [0]).run(Execution(), silent)
    with pytest.raises(RunError, match="is a sweep of a config with batch_size = 8, not 9; give another --out"):
        plan_sweep(root, config, ["batch_size=9"], [], [0]).run(Execution(), silent)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(RunError, match="exists and is not a sweep"):
        plan_sweep(tmp_path / "mine", config, [], [], [0]).run(Execution(), silent)
    for runs in ([{"settings": ["a"]}], [{"settings": ["a=["], "place": 0, "algorithm": "x", "seed": 0}], 3,
                 [{"settings": [], "place": 0, "algorithm": "../..", "seed": 0}]):  # fmt: skip
        write_json(root / "sweep.json", {"config": {}, "runs": runs})
        with pytest.raises(RunError, match=r"sweep\.json is damaged; restore the file"):
            SweepFolder.open(root)


def test_the_command_goes_on_and_prints_values_and_best(config: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "sweep"
    command = ["run", config, "--set", 'compare=["ind-mask"]', "--vary", "algorithm.lr=0.125,1.75", "--seeds", "2"]
    for words in ([*command, "--out", out], ["show", out], ["run", "--resume", out]):  # nothing is left to run then
        code, said, _ = call(*words)
        assert not code
        for word in ("0.125", "1.75", "ind-mask", "best for mce-pl: algorithm.lr=", "on held-out data"):
            assert word in said
        assert "best for ind-mask" not in said
    assert said.rstrip().endswith(str(out))
    assert len(pd.read_csv(out / "sweep.csv")) == 3
    (out / SweepFolder.open(out).runs[0].path / "result.json").unlink()
    assert f"1 of 6 runs are missing; resume with: peermask run --resume {out}" in call("show", out)[1]
    for option, message in (
        (("--seeds", "2"), "--resume of a sweep runs what is missing, unchanged"),
        (("--set", "rounds=9"), "--resume of a sweep runs what is missing, unchanged"),
        (("--tensorboard",), "a sweep runs neither under torchrun nor with --tensorboard"),
    ):
        code, _, err = call("run", "--resume", out, *option)
        assert code == 2
        assert message in err
    assert call("runs", "delete", "--yes", out)[0] == 0
    assert not out.exists()


def test_values_of_three_keys_have_room_in_80_columns(
    tmp_path: Path, call: Call, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", "80")
    keys = ("algorithm.lr=0.0625", "retention=0.4375", "data.validation=0.1875")
    varied = [word for key in keys for word in ("--vary", key)]
    said = call("run", config, *varied, "--seeds", "2", "--out", tmp_path / "sweep")[1]
    table = said.partition("standard deviation")[2].partition("held out, test")[0]
    assert all(value in table for value in ("0.0625", "0.4375", "0.1875"))


@pytest.mark.long
def test_processes_share_the_runs_of_a_sweep(tmp_path: Path, call: Call, config: Path) -> None:
    command = ["run", config, "--vary", "algorithm.lr=0.125,1.75", "--seeds", "2"]
    tables = []
    for name, words in (("alone", []), ("shared", ["--processes", "2"])):
        out = tmp_path / name
        assert call(*command, "--out", out, *words)[0] == 0
        sweep = SweepFolder.open(out)
        hashes = [read_result((out / run.path) / "result.json")["hash"] for run in sweep.runs]
        tables.append((hashes, (out / "sweep.csv").read_text()))
    assert tables[0] == tables[1]
