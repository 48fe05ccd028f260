"""What honest agents send is admitted whatever the algorithm, and what they cannot have made is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fleet_cases import tiny

from peermask.algorithms import algorithms
from peermask.algorithms.contract import Clock
from peermask.errors import WireError
from peermask.fleet.admission import Admission
from peermask.run.assemble import build_simulator
from peermask.run.build import build

RETENTIONS = [0.2, 0.3, 0.4, 0.5]


def admission(**keys):
    experiment = build(tiny(retention=RETENTIONS, **keys))
    simulator = build_simulator(experiment, torch.device("cpu"))
    return Admission(simulator.algorithm, experiment.agents, experiment.network.layout.sizes), simulator


def rows(payload, agent):
    return {name: leaf[agent].flatten().numpy().copy() for name, leaf in payload.items()}


@pytest.mark.parametrize("filter_threshold", [0.0, 0.3])
@pytest.mark.parametrize("name", [entry.name for entry in algorithms])
def test_what_an_honest_agent_sends_is_admitted(name, filter_threshold):
    admit, simulator = admission(algorithm={"name": name}, mask={"filter_threshold": filter_threshold})
    with simulator:
        for number in range(1, 5):
            shared = simulator.play(Clock(number, 4)).shared
            for agent in range(4) if shared else ():
                admit(agent, rows(shared, agent))


def mask_of(admit, agent):
    """One that fits: the first K_l weights of each layer."""
    _, most = admit.counts["mask"]
    return np.concatenate([np.arange(size) < kept for size, kept in zip(admit.sizes, most[agent], strict=True)])


@pytest.mark.parametrize("lie", ["all", "none", "one more", "one less", "inverted", "another's"])
def test_a_mask_that_does_not_fit_its_senders_retention_is_refused(lie):
    admit, _ = admission(mask={"fc_keep": "r"})
    mask = mask_of(admit, 1)
    admit(1, {"mask": mask})
    lies = {
        "all": np.ones_like(mask),
        "none": np.zeros_like(mask),
        "one more": mask | (np.arange(mask.size) == np.flatnonzero(~mask)[0]),
        "one less": mask & (np.arange(mask.size) > 0),
        "inverted": ~mask,
        "another's": mask_of(admit, 2),
    }
    with pytest.raises(WireError, match=r"'mask' keeps \d+ weights of layer 0, its retention gives") as refused:
        admit(1, {"mask": lies[lie]})
    assert refused.value.why == "counts"


def test_with_the_filter_rule_a_mask_may_be_smaller_and_never_larger():
    admit, _ = admission(mask={"fc_keep": "r", "filter_threshold": 0.5})
    mask = mask_of(admit, 0)
    admit(0, {"mask": mask & (np.arange(mask.size) > 3)})
    with pytest.raises(WireError, match="gives 0 to"):
        admit(0, {"mask": mask_of(admit, 1)})


@pytest.mark.parametrize("value", [1001.0, -3.4e38])
def test_a_huge_value_is_refused(value):
    admit, _ = admission(algorithm={"name": "dsgd"})
    good = np.linspace(-1000, 1000, 50, dtype=np.float32)
    admit(0, {"weights": good})
    good[7] = value
    with pytest.raises(WireError, match="allowed: 1000") as refused:
        admit(0, {"weights": good})
    assert refused.value.why == "values"
