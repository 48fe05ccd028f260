"""Losses between rare evaluations: bounded, and their mean over all rounds."""

from __future__ import annotations

import pytest
import torch

from peermask.run.execution import Execution
from peermask.run.loop import KEPT, RecentLosses
from peermask.run.runner import resume_experiment, run_experiment
from peermask.store.table import read_rows


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
    held, most, rounds = RecentLosses({}), 0, 2 * KEPT + 9
    for number in range(1, rounds + 1):
        held.add(torch.tensor([float(number), 1.0]))
        if held.full:
            held.sum_up()
        most = max(most, len(held.latest()))
        held = RecentLosses(held.tensors())
    assert most == KEPT
    assert held.latest(1).tolist() == [[rounds, 1.0]]
    assert held.mean().tolist() == [(rounds + 1) / 2, 1.0]  # (1 + ... + n) / n
    assert held.mean().dtype == torch.float32


@pytest.mark.parametrize("cut", [KEPT - 1, KEPT + 2])
def test_a_resumed_run_has_the_same_table_where_evaluations_are_rare(small, tmp_path, cut):
    config = small(rounds=KEPT + 4, evaluation={"every": 2 * KEPT}, checkpoint={"every": 100})
    whole = run_experiment(config, tmp_path / "whole")
    asked = iter(range(1, 2 * KEPT))
    run_experiment(config, tmp_path / "cut", execution=Execution(should_stop=lambda: next(asked) == cut))
    assert resume_experiment(tmp_path / "cut").hash == whole.hash
    tables = [read_rows(tmp_path / name / "metrics.csv") for name in ("whole", "cut")]
    assert len(tables[0]) > 0
    assert [row["train_loss"] for row in tables[0]] == [row["train_loss"] for row in tables[1]]
