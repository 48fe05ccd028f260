"""Going on with a run that is finished: for more rounds, and as nothing else than what it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import peermask
from commands import Small, stop_after
from peermask.config.file import load_config
from peermask.errors import RunError
from peermask.run import manifest
from peermask.run.loop import ROUNDS_APART, RecentLosses
from peermask.run.result import RunResult
from peermask.run.runner import resume_experiment, run_experiment
from peermask.store.folder import RunFolder
from peermask.store.table import read_rows


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_finished_run_is_extended_to_what_it_would_have_been(small: Small, tmp_path: Path) -> None:
    whole = run_experiment(small(rounds=8), tmp_path / "whole")
    run_experiment(small(rounds=4), tmp_path / "run")
    longer = resume_experiment(tmp_path / "run", overrides=["rounds=8"])
    assert (longer.hash, longer.round, longer.status) == (whole.hash, 8, "finished")
    assert load_config(tmp_path / "run" / "config.toml").rounds == 8
    tables = [pd.read_csv(tmp_path / name / "traffic.csv") for name in ("whole", "run")]
    pd.testing.assert_frame_equal(tables[0], tables[1])
    assert resume_experiment(tmp_path / "run").hash == whole.hash
    assert len(longer.local_models()) == 4


def test_a_run_that_is_not_over_is_extended_too(small: Small, tmp_path: Path) -> None:
    whole = run_experiment(small(rounds=6), tmp_path / "whole")
    run_experiment(small(rounds=4), tmp_path / "run", execution=stop_after(2))
    assert resume_experiment(tmp_path / "run", overrides=["rounds=6"]).hash == whole.hash


@pytest.mark.parametrize("step", [1, 2])
def test_extending_may_be_cut_off_anywhere(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    whole = run_experiment(small(rounds=6), tmp_path / "whole")
    run_experiment(small(), tmp_path / "run")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*[(Path, "unlink"), (manifest, "write_atomically")][step - 1], killed)
        with pytest.raises(KeyboardInterrupt):
            resume_experiment(tmp_path / "run", overrides=["rounds=6"])
    short = resume_experiment(tmp_path / "run")  # still a run of four rounds
    assert (short.round, short.status) == (4, "finished")
    assert resume_experiment(tmp_path / "run", overrides=["rounds=6"]).hash == whole.hash


def test_a_comparison_is_extended_arm_by_arm(small: Small, tmp_path: Path) -> None:
    whole = run_experiment(small(rounds=6, compare=["ind-mask"]), tmp_path / "whole")
    run_experiment(small(compare=["ind-mask"]), tmp_path / "run")
    cut = resume_experiment(tmp_path / "run", stop_after(1), ["rounds=6"])
    assert cut.status == "interrupted"
    longer = resume_experiment(tmp_path / "run")  # the comparison knows its new end
    assert [longer.hash, longer.compared[0].hash] == [whole.hash, whole.compared[0].hash]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.lr=0.3"], r"was run with algorithm\.lr = 1\.0, not 0\.3; only rounds can be increased"),
        (["rounds=9", "seed=1"], r"was run with seed = 0, not 1; only rounds"),
        (["model.hidden=[9]"], r"model\.hidden = \[12\], not \[9\]"),
        (["rounds=3"], r"is a run of 4 rounds, not 3; it can only be increased"),
        (
            ["seed=1", "batch_size=9", "algorithm.lr=2.0", "frozen.bias_init=torch-default"],
            r"seed = 0, not 1, batch_size = 8, not 9, frozen.* and 1 more;",
        ),
    ],
)
def test_what_differs_is_named_and_nothing_is_changed(
    small: Small, tmp_path: Path, overrides: Sequence[str], message: str
) -> None:
    run_experiment(small(), tmp_path / "run")
    before = files(tmp_path)
    with pytest.raises(RunError, match=message):
        resume_experiment(tmp_path / "run", overrides=overrides)
    assert files(tmp_path) == before


def test_other_data_and_another_module_are_named(small: Small, tmp_path: Path) -> None:
    run_experiment(small(), tmp_path / "run")
    images, labels = np.zeros((60, 1, 8, 8), np.float32), np.arange(60) % 10
    data = peermask.from_arrays(images, labels, images, labels)
    with pytest.raises(
        RunError, match=r"was run on digits data with hash \w+, here it is arrays \w+; use the original data"
    ):
        run_experiment(small(), tmp_path / "run", resume=True, dataset=data)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(RunError, match=r"was run with frozen weights \w+, here they are .*use the original module"):
        run_experiment(small(), tmp_path / "run", resume=True, module=module)


def test_a_run_that_converged_is_not_extended(small: Small, tmp_path: Path) -> None:
    config = small(rounds=200, stop={"patience": 2, "tolerance": 1.0})
    run_experiment(config, tmp_path / "run")
    with pytest.raises(RunError, match=r"stopped at round 6 because accuracy no longer improved \(stop.patience = 2\)"):
        resume_experiment(tmp_path / "run", overrides=["rounds=300"])
    assert RunResult.open(tmp_path / "run").status == "converged"


def test_a_comparison_that_resumes_into_nothing_begins(small: Small, tmp_path: Path) -> None:
    made = run_experiment(small(compare=["ind-mask"]), tmp_path / "run", resume=True)
    assert RunFolder(tmp_path / "run" / "ind-mask").result.is_file()
    assert RunResult.open(tmp_path / "run").compared[0].hash == made.compared[0].hash


def test_a_mean_over_few_rounds_is_that_of_the_rounds():
    held = RecentLosses({})
    assert not held
    assert held.tensors() == {}
    for row in ([1.0, 2.0], [3.0, 6.0]):
        held.add(torch.tensor(row))
    assert held.mean().tolist() == [2.0, 4.0]
    assert set(held.tensors()) == {"recent"}
    held.clear()
    assert not held


def test_many_rounds_are_kept_as_a_sum_and_come_back_from_a_checkpoint():
    held, most, rounds = RecentLosses({}), 0, 2 * ROUNDS_APART + 9
    for number in range(1, rounds + 1):
        held.add(torch.tensor([float(number), 1.0]))
        if held.full:
            held.sum_up()
        most = max(most, len(held.latest()))
        held = RecentLosses(held.tensors())
    assert most == ROUNDS_APART
    assert held.latest(1).tolist() == [[rounds, 1.0]]
    assert held.mean().tolist() == [(rounds + 1) / 2, 1.0]  # (1 + ... + n) / n
    assert held.mean().dtype == torch.float32


def test_a_resumed_run_has_the_same_table_where_evaluations_are_rare(small, tmp_path):
    config = small(rounds=ROUNDS_APART + 4, evaluation={"every": 2 * ROUNDS_APART}, checkpoint={"every": 100})
    run_experiment(config, tmp_path / "whole")
    wanted = read_rows(tmp_path / "whole" / "metrics.csv")
    assert wanted
    run_experiment(config, tmp_path / "cut", execution=stop_after(ROUNDS_APART - 1))
    resume_experiment(tmp_path / "cut", stop_after(3))  # that is, in round ROUNDS_APART + 2
    assert resume_experiment(tmp_path / "cut").hash == RunResult.open(tmp_path / "whole").hash
    assert [row["train_loss"] for row in read_rows(tmp_path / "cut" / "metrics.csv")] == [
        row["train_loss"] for row in wanted
    ]
