"""What `plan` says before a run, and that it learns nothing."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from torch import nn

import peermask
from peermask.errors import ConfigError, DataError

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
    with pytest.raises(ConfigError, match="roundz: unknown key"):
        peermask.plan({**RING, "roundz": 3})
    with pytest.raises(DataError, match=r"dataset has type list; make one of it with peermask.from_arrays"):
        peermask.plan(RING, dataset=[1, 2])  # type: ignore[arg-type]
