"""What `plan` and `data` say before a run, against tables counted by hand; nothing is learned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import peermask
from peermask.cli.main import main
from peermask.cli.plan import findings
from peermask.data.dataset import Dataset, Task
from peermask.errors import ConfigError, DataError, RunError
from peermask.reports.page import gather
from peermask.run.data_summary import quick_duplicates

RING: dict[str, Any] = {"agents": 5, "rounds": 4, "graph": "ring", "model": "mlp", "retention": 0.3}


@pytest.mark.parametrize("lr", [0.2, 1e38])
def test_a_plan_refuses_no_step_size(lr: float) -> None:
    """A step that would diverge if it were repeated, or at once, is for the run to find out."""
    plan = peermask.plan({**RING, "algorithm": {"name": "dsgd", "lr": lr}}, device="cpu")["dsgd"]
    assert (plan.agents, plan.links, plan.rounds) == (5, 10, 4)
    assert plan.message_bytes > 4 * plan.weights  # a dense model
    assert plan.seconds is not None
    assert plan.seconds > 0


def test_a_plan_begins_every_trial_from_the_first_state(monkeypatch: pytest.MonkeyPatch) -> None:
    from peermask.algorithms.dsgd import Dsgd, State

    seen = []
    learn = Dsgd.learn

    def watched(self: Dsgd, state: State, *rest: Any) -> Any:
        seen.append(state.params)
        return learn(self, state, *rest)

    monkeypatch.setattr(Dsgd, "learn", watched)
    peermask.plan({**RING, "algorithm": "dsgd"}, device="cpu")
    assert len({id(params) for params in seen}) <= (os.cpu_count() or 1)


def test_a_plan_of_own_data_and_module() -> None:
    x, y = np.random.default_rng(0).random((60, 3), np.float32), np.arange(60) % 3
    data = peermask.from_arrays(x, y, x, y)
    module = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 3))
    config = {"agents": 4, "rounds": 2, "graph": "ring", "partition": "iid", "algorithm": "mce-pl", "retention": 0.5}
    plan = peermask.plan(config, dataset=data, module=module, device="cpu")["mce-pl"]
    assert (plan.weights, plan.parameters) == (3 * 7 + 7 * 3, 3 * 7 + 7 * 3 + 7 + 3)
    assert plan.notes  # the module's own weights are not used
    compared = peermask.plan({**config, "compare": [{"name": "ind-mask"}]}, dataset=data, module=module, device="cpu")
    assert list(compared) == ["mce-pl", "ind-mask"]
    assert compared["ind-mask"].message_bytes == 0


def test_mistakes_are_those_of_a_run() -> None:
    with pytest.raises(ConfigError, match="processes is 0; at least 1"):
        peermask.plan(RING, processes=0)
    with pytest.raises(RunError, match=r"999 ranks and agents = .*start at most"):
        peermask.plan(RING, processes=999)
    with pytest.raises(ConfigError, match="roundz: unknown key"):
        peermask.plan({**RING, "roundz": 3})
    with pytest.raises(DataError, match=r"dataset has type list; make one of it with peermask.from_arrays"):
        peermask.plan(RING, dataset=[1, 2])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="agentz: unknown key"):
        peermask.describe_data({"agentz": 3})
    with pytest.raises(DataError, match="dataset has type int; make one of it"):
        peermask.describe_data({"agents": 2}, dataset=3)  # type: ignore[arg-type]


def by_hand_data() -> Dataset:
    """Two agents with three samples each, of which one input is the same."""
    x = np.array([[0, 5], [1, 5], [2, 5], [0, 5], [3, 5], [-4, 5]], np.float32)
    y, agents = np.array([0, 0, 1, 0, 1, 1]), np.array([0, 0, 0, 1, 1, 1])
    x_test = np.array([[2, 5], [7, 5], [-0.0, 5]], np.float32)  # the first and the last are trained on
    return peermask.from_arrays(
        x, y, x_test, np.array([1, 0, 0]), ["a", "b", "c"], agent_train=agents, agent_test=np.array([0, 1, 1])
    )


def by_hand() -> peermask.DataSummary:
    config = {"agents": 2, "partition": "given", "data": {"validation": 0.0}}
    return peermask.describe_data(config, dataset=by_hand_data())


def test_every_number() -> None:
    seen = by_hand()
    assert (seen.train, seen.validation, seen.test) == ((3, 3), (0, 0), (1, 2))
    assert seen.histograms == ((2, 1, 0), (1, 2, 0))
    assert (seen.shared, seen.leaked, seen.missing) == (1, 2, ("c",))
    assert (seen.ranges, seen.constant) == (((-4, 3), (5, 5)), (1,))


def test_what_a_user_is_told() -> None:
    lines = findings(by_hand())
    assert "inputs have shape 2 and values from -4 to 5" in lines
    assert "constant features or channels: 1" in lines
    assert "inputs that several agents train on: 1" in lines
    assert "test samples that are also trained on: 2; results would look too good" in lines
    assert "classes that no agent trains on: 1 (c)" in lines


@pytest.mark.parametrize("task", ["regression", "multi-label"])
def test_other_tasks(task: Task) -> None:
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.tile([[1.0, 0.0]], (20, 1))
    config = {"agents": 2, "partition": "iid", "graph": "complete"}
    seen = peermask.describe_data(config, dataset=peermask.from_arrays(x, y, x + 100, y, task=task))
    assert (seen.missing, bool(seen.histograms)) == (((), False) if task == "regression" else (("1",), True))
    assert seen.leaked == 0


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["data", "--set", "agents=4", "--agents", "2"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert "and 2 more agents; show them with --agents 4" in out
    assert "test samples that are also trained on: 0" in out
    assert not list(tmp_path.iterdir())


def test_a_run_records_duplicates_and_a_page_shows_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, config = by_hand_data(), {"agents": 2, "partition": "given", "data": {"validation": 0.0}, "rounds": 1}
    result = peermask.run_experiment({**config, "model": "mlp", "graph": "complete"}, tmp_path / "run", dataset=data)
    assert result.manifest["duplicates"] == {"shared": 1, "leaked": 2}
    (shown,) = gather([result.root])["runs"]
    assert shown["data"]["samples"] == [[3, 0, 1], [3, 0, 2]]
    assert shown["data"]["counts"] == [{0: 2, 1: 1}, {0: 1, 1: 2}]
    assert (shown["data"]["missing"], shown["data"]["duplicates"]) == (["c"], {"shared": 1, "leaked": 2})
    monkeypatch.setattr("peermask.run.data_summary.LARGEST_BYTES", 1)  # a search of large data would delay a run
    assert quick_duplicates(data, []) is None
