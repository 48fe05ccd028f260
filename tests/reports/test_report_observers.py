"""Loggers told by a real run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.config.experiment import ExperimentConfig
from peermask.errors import RunError
from peermask.reports.observers import ObserverList, loggers
from peermask.run.build import Experiment
from peermask.run.execution import Execution, Status
from peermask.run.metrics import Evaluation
from peermask.run.runner import run_experiment


class Diary:
    def __init__(self) -> None:
        self.falsify: list[str] = []

    def begin(self, experiment: Experiment, name: str, round: int) -> None:
        self.falsify.append(f"begin {name} of {experiment.config.agents} at {round}")

    def round(self, clock: Clock, losses: Tensor, sent_bytes: float) -> None:
        assert len(losses) == 4
        assert sent_bytes >= 0
        self.falsify.append(f"round {clock.round}")

    def evaluation(self, evaluation: Evaluation) -> None:
        self.falsify.append(f"evaluation {evaluation.round}")

    def end(self, status: Status) -> None:
        self.falsify.append(status)


def test_all_observers_hear_the_same(small: Callable[..., ExperimentConfig], tmp_path: Path) -> None:
    diaries = [Diary(), Diary()]
    run_experiment(small(rounds=2), tmp_path / "a", execution=Execution("cpu", observer=ObserverList(diaries)))
    heard = ["begin mce-pl of 4 at 0", "round 1", "round 2", "evaluation 2", "finished"]
    assert [diary.falsify for diary in diaries] == [heard, heard]


def test_without_tensorboard_the_error_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RunError, match=r"pip install 'peermask\[tensorboard\]'"):
        loggers(tmp_path)


def test_tensorboard_gets_means_and_every_agent(small: Callable[..., ExperimentConfig], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = loggers(tmp_path / "tb")
    result = run_experiment(small(), tmp_path / "a", execution=Execution("cpu", observer=ObserverList(logs)))
    (own,) = (tmp_path / "tb").iterdir()
    events = EventAccumulator(str(own))
    events.Reload()
    assert [event.step for event in events.Scalars("test_accuracy")] == [2, 4]
    assert events.Scalars("test_accuracy")[-1].value == pytest.approx(result.mean_accuracy, abs=1e-6)
    assert events.Scalars("agents/3")[-1].value == pytest.approx(result.agents[3].test_accuracy, abs=1e-6)
