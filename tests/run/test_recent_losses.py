"""Losses between rare evaluations: bounded, and their mean over all rounds."""

from __future__ import annotations

import itertools

import torch

from peermask.run.execution import Execution
from peermask.run.loop import KEPT, RecentLosses
from peermask.run.result import RunResult
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


def test_a_resumed_run_has_the_same_table_where_evaluations_are_rare(small, tmp_path):
    config = small(rounds=KEPT + 4, evaluation={"every": 2 * KEPT}, checkpoint={"every": 100})
    run_experiment(config, tmp_path / "whole")
    wanted = read_rows(tmp_path / "whole" / "metrics.csv")
    assert wanted
    run_experiment(config, tmp_path / "cut", execution=stop_at(KEPT - 1))
    resume_experiment(tmp_path / "cut", stop_at(3))  # that is, in round KEPT + 2
    assert resume_experiment(tmp_path / "cut").hash == RunResult.open(tmp_path / "whole").hash
    assert [row["train_loss"] for row in read_rows(tmp_path / "cut" / "metrics.csv")] == [
        row["train_loss"] for row in wanted
    ]


def stop_at(asked):
    """Stop when it is asked for the n-th time, which is once a round."""
    asking = itertools.count(1)
    return Execution(should_stop=lambda: next(asking) == asked)
