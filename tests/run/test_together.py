"""Runs side by side: gradients in one stack, every run's numbers its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from peermask.compute.network import Batch, Gradient, Network
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import make_config
from peermask.errors import RunError
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment
from peermask.run.side_by_side import play_side_by_side, run_together


class Counting(Network):
    """A network whose gradient is twice its parameters, and which keeps how many agents it was asked for at once."""

    def __init__(self) -> None:
        object.__setattr__(self, "asked", [])

    def gradient_here(self, params: Tensor, batch: Batch, parts: Any = None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        self.asked.append(len(params))  # type: ignore[attr-defined]
        if bool(params.isnan().any()):
            raise RunError("no memory")
        return 2 * params, params.sum(1)


def asking(network: Network, value: float, agents: int, times: int) -> Callable[[Gradient], float]:
    batch = Batch(torch.zeros(agents, 1, 1, 1, 1), torch.zeros(agents, 1, dtype=torch.int64))

    def task(gradient: Gradient) -> float:
        params = torch.full((agents, 3), value)
        for _ in range(times):
            params, losses = gradient(network, params, batch)
            assert losses.shape == (agents,)
        return float(params.mean())

    return task


def test_gradients_are_joined_while_several_run_and_each_has_its_own() -> None:
    network = Counting()
    results = run_together([("a", asking(network, 1.0, 2, 3)), ("a", asking(network, 5.0, 4, 1))])
    assert results == [8.0, 10.0]
    assert network.asked == [6, 2, 2]  # type: ignore[attr-defined]


def test_networks_of_another_form_are_not_joined() -> None:
    network = Counting()
    assert run_together([("a", asking(network, 1.0, 1, 1)), ("b", asking(network, 1.0, 1, 1))]) == [2.0, 2.0]
    assert network.asked == [1, 1]  # type: ignore[attr-defined]


def test_a_run_that_fails_does_not_stop_the_others() -> None:
    def fails(_gradient: Gradient) -> float:
        raise RunError("a full disk")

    failed, whole = run_together([("a", fails), ("a", asking(Counting(), 1.0, 1, 2))])
    assert isinstance(failed, RunError)
    assert whole == 4.0


def test_a_stack_that_fails_fails_all_of_its_runs() -> None:
    network = Counting()
    results = run_together([("a", asking(network, 1.0, 1, 1)), ("a", asking(network, float("nan"), 1, 1))])
    assert [str(result) for result in results] == ["no memory"] * 2


def config(**changes: Any) -> ExperimentConfig:
    return make_config(
        {
            "agents": 4,
            "rounds": 3,
            "batch_size": 8,
            "retention": 0.3,
            "data": {"fraction": 0.1},
            "model": "mlp",
            **changes,
        }
    )


@pytest.mark.parametrize("name", ["mce-pl", "dsgd"])
def test_runs_side_by_side_end_as_they_do_alone(tmp_path: Path, name: str) -> None:
    configs = [config(seed=0, algorithm=name), config(seed=1, algorithm=name), config(rounds=2, algorithm=name)]
    execution = Execution(device="cpu", chunk=4)
    alone = [run_experiment(each, tmp_path / f"alone-{i}", execution=execution) for i, each in enumerate(configs)]
    places = {id(each): tmp_path / f"beside-{i}" for i, each in enumerate(configs)}

    def play(each: ExperimentConfig, gradient: Gradient | None) -> RunResult:
        assert gradient is not None
        own = Execution(device="cpu", chunk=4, gradient=gradient)
        return run_experiment(each, places[id(each)], execution=own)

    for beside, whole in zip(play_side_by_side(configs, play), alone, strict=True):
        assert isinstance(beside, RunResult)
        assert beside.hash == whole.hash
