"""ind-mask is MCE-PL with nobody to hear, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import torch

from peermask.algorithms.contract import Clock
from peermask.config.experiment import ExperimentConfig
from peermask.run.assemble import build_simulator
from peermask.run.build import build
from peermask.run.simulator import Simulator


def played(config: ExperimentConfig) -> Simulator:
    with build_simulator(build(config), torch.device("cpu")) as simulator:
        for number in range(1, config.rounds + 1):
            simulator.play(Clock(number, config.rounds))
    return simulator


def test_mce_pl_without_neighbours_is_ind_mask(small: Callable[..., ExperimentConfig]) -> None:
    alone = {"agents": 1, "graph": "path", "retention": 0.3, "rounds": 6, "mask": {"fc_keep": "r"}}
    heard = played(small(**alone, algorithm={"name": "mce-pl", "first_votes": "none"})).tensors()
    unheard = played(small(**alone, algorithm="ind-mask")).tensors()
    assert torch.equal(heard["scores"], unheard["scores"])
    assert torch.equal(heard["mask"], unheard["mask"])


def test_it_sends_nothing_and_learns(small: Callable[..., ExperimentConfig]) -> None:
    config = small(algorithm="ind-mask", rounds=30, data={"fraction": 1.0}, model={"name": "mlp"})
    with build_simulator(build(config), torch.device("cpu")) as simulator:
        losses = [simulator.play(Clock(k, 30)).losses.mean() for k in range(1, 31)]
        assert simulator.play(Clock(30, 30)).shared == {}
    assert float(losses[-1]) < 0.7 * float(losses[0])
