"""Openings: by hand, close to the first message, and the same wherever they are worked out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from peermask.algorithms.contract import Clock
from peermask.algorithms.descent import opening_mask
from peermask.config.file import make_config
from peermask.run.assemble import build_simulator, openings
from peermask.run.build import build


def test_the_largest_of_each_layer_by_hand() -> None:
    """The mean of |z| is 0.25 in the first layer: a vote raises 0.1 above 0.3. In the second the first equals win."""
    scores = np.array([-0.5, 0.1, 0.3, 0.1, 0.5, 0.5, -0.5], np.float32)
    votes = np.array([0, 1, 0, 0, 0, 0, 0], np.uint8)
    mask = opening_mask(scores, votes, 1.0, [2, 2], (4, 3))
    assert mask.int().tolist() == [1, 1, 0, 0, 1, 1, 0]
    assert opening_mask(scores, votes, 0.0, [2, 3], (4, 3)).int().tolist() == [1, 0, 1, 0, 1, 1, 1]


@pytest.mark.parametrize("algorithm", ["mce-pl", "accord"])
@pytest.mark.parametrize("init", ["shared", "independent"])
def test_an_opening_is_close_to_the_first_message(algorithm: str, init: str) -> None:
    settings = {"agents": 4, "rounds": 3, "retention": [0.1, 0.3, 0.3, 0.4], "graph": "ring", "data": {"fraction": 0.2}}
    experiment = build(make_config({**settings, "algorithm": {"name": algorithm, "score_init": init}}))
    opening = openings(experiment, experiment.agents)["mask"]
    with build_simulator(experiment, torch.device("cpu")) as simulator:
        first = simulator.play(Clock(1, 3)).shared["mask"]
    assert ((opening != first).float().mean(1) < 0.05).all()
    alone = openings(experiment, experiment.agents.rows(slice(2, 3)))["mask"]
    assert torch.equal(alone[0], opening[2])  # a neighbour works out the same


def test_who_sends_no_mask_has_no_opening() -> None:
    experiment = build(make_config({"agents": 4, "graph": "ring", "algorithm": "dsgd"}))
    assert openings(experiment, experiment.agents) == {}
