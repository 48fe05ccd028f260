"""Which runs share a GPU, and that they do: see engine/together.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from peermask.data.dataset import Dataset
from peermask.engine.device import fast_float32
from peermask.engine.together import run_together
from peermask.experiment.assemble import agents_at_once, is_fused
from peermask.experiment.build import build
from peermask.experiment.config import ExperimentConfig
from peermask.models.network import Gradient

T = TypeVar("T")
MOST = 4  # runs at once: a GPU has enough to do with their agents


def runs_at_once(config: ExperimentConfig, dataset: Dataset | None, device: torch.device) -> int:
    """How many runs like this one to compute side by side.

    One on a CPU, whose cores are busy with it, and where it is not known that each ends with the numbers it has alone.
    """
    if device.type == "cpu" or config.asynchronous is not None:
        return 1
    experiment = build(config, dataset)
    if not is_fused(experiment):
        return 1
    sizes = {runs: runs * config.agents for runs in range(MOST, 1, -1)}
    return next((runs for runs, agents in sizes.items() if agents_at_once(experiment, device, agents) == agents), 1)


def play_side_by_side(
    configs: Sequence[ExperimentConfig], play: Callable[[ExperimentConfig, Gradient | None], T]
) -> list[T | BaseException]:
    """The result of each run, or the error it ended with."""
    if len(configs) == 1:
        try:
            return [play(configs[0], None)]
        except Exception as error:
            return [error]
    with fast_float32():  # no run that ends switches it off for the others

        def task(config: ExperimentConfig) -> Callable[[Gradient], T]:
            return lambda gradient: play(config, gradient)

        return run_together([(_form(config), task(config)) for config in configs])


def _form(config: ExperimentConfig) -> str:
    """All that a gradient depends on beside parameters and batch: the network, what was put into it, and the loss."""
    table = config.table()
    given = config.frozen.source
    return json.dumps([table["model"], table["dataset"], table.get("task"), given], sort_keys=True)
