"""One agent's personal model, read back from a run's last checkpoint."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from peermask.data.dataset import Dataset
from peermask.errors import ExportError
from peermask.models.layout import Layout
from peermask.run.assemble import build_simulator, with_params, with_readout_and_inputs
from peermask.run.build import Experiment, build
from peermask.run.result import RunResult
from peermask.store.result import AgentResult

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Personal:
    result: RunResult
    agent: int
    experiment: Experiment
    params: Tensor  # [P]: what the agent deploys
    round: int
    own_module: bool  # the network was given from Python, so its name in the config means nothing

    @property
    def about(self) -> AgentResult:
        return self.result.agents[self.agent]

    @property
    def layout(self) -> Layout:
        return self.experiment.network.layout

    def module(self) -> nn.Module:
        """An ordinary module with this agent's parameters, which takes raw inputs and answers by the run's readout."""
        module = with_params(copy.deepcopy(self.experiment.network.module), self.layout, self.params)
        return with_readout_and_inputs(module, self.experiment.dataset, self.result.readout, self.about.labels)


def open_personal(
    result: RunResult, agent: int, dataset: Dataset | None = None, module: nn.Module | None = None
) -> Personal:
    """The model of one agent; a run on data or a module of your own needs them again."""
    if isinstance(agent, bool) or not isinstance(agent, int):
        raise ExportError(f"agent is {agent!r}: must be the number of an agent, 0 to {len(result.agents) - 1}")
    if not 0 <= agent < len(result.agents):
        raise ExportError(f"{result.root} has no agent {agent}: its agents are 0 to {len(result.agents) - 1}")
    return open_all(result, dataset, module)[agent]


def open_all(result: RunResult, dataset: Dataset | None = None, module: nn.Module | None = None) -> list[Personal]:
    """The models of all agents."""
    experiment = build(result.config_with_plugins(), dataset, module)
    _check_same_network(result, experiment, given=module is not None)
    checkpoint = result.last_checkpoint(experiment.frozen.checksum)
    if checkpoint.progress.round < result.round:
        logger.warning(
            f"the model is of round {checkpoint.progress.round}, the last checkpoint; the run is at {result.round}"
        )
    simulator = build_simulator(experiment, torch.device("cpu"))
    simulator.restore(checkpoint.states)
    return [
        Personal(result, agent, experiment, params, checkpoint.progress.round, module is not None)
        for agent, params in enumerate(simulator.local_models())
    ]


def _check_same_network(result: RunResult, experiment: Experiment, *, given: bool) -> None:
    here = [list(layer.shape) for layer in experiment.network.layout.masked]
    then = [layer["shape"] for layer in result.manifest["layers"]]
    if here != then:
        what = "the module given" if given else f"model.name = {result.config.model.name!r}"
        raise ExportError(
            f"{result.root} was run with another network than {what}; "
            "in Python, pass its own: peermask.export(..., module=...)"
        )
