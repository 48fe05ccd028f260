"""CUDA graphs of rounds against rounds that are issued launch by launch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.config.file import make_config
from peermask.run.assemble import build_simulator
from peermask.run.build import build
from peermask.run.cuda_graphs import Recorded

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def played(algorithm: Any, *, record: bool, rounds: int = 24, batches: int = 1, **values: Any) -> dict[str, Tensor]:
    config = make_config(
        {
            "agents": 5,
            "rounds": rounds,
            "retention": [0.2, 0.3, 0.4, 0.4, 0.4],
            "batch_size": 16,
            "model": "cnn",
            "dataset": "digits",
            "algorithm": algorithm,
        }
        | values
    )
    with build_simulator(build(config), torch.device("cuda")) as simulator:
        if record:
            simulator.record()
        for number in range(1, rounds + 1):
            losses = simulator.play(Clock(number, rounds, batches=batches)).losses
        if record:
            assert isinstance(simulator.steps, Recorded)
            stages = {key[0]: step.stage for key, step in simulator.steps.steps.items()}
            assert stages["learn"] == "replay"
        return simulator.tensors() | {"losses": losses.cpu()}


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("algorithm", ["mce-pl", "accord", "ind-mask", "dsgd", "fl"])
def test_replayed_rounds_equal_issued_ones(algorithm: str, batches: int) -> None:
    issued = played(algorithm, record=False, batches=batches)
    for name, found in played(algorithm, record=True, batches=batches).items():
        assert torch.equal(issued[name], found), name


def test_rates_and_augmentation_change_in_replays() -> None:
    values: dict[str, Any] = {"data": {"flip": True, "crop": 2}}
    algorithm = {"name": "mce-pl", "schedule": "cosine"}
    issued = played(algorithm, record=False, **values)
    for name, found in played(algorithm, record=True, **values).items():
        assert torch.equal(issued[name], found), name
