"""The personal models of agents as ordinary modules, from a checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from peermask.data.dataset import Dataset
from peermask.data.normalisation import FromRaw
from peermask.experiment.assemble import build_simulator
from peermask.experiment.build import Experiment
from peermask.models.readout import Readout, with_readout


def personal_models(
    experiment: Experiment, states: dict[str, Tensor], readout: Readout, labels: Sequence[Sequence[int]]
) -> list[nn.Module]:
    """Every agent's network, from the states of all agents in a checkpoint; `labels` are each agent's own."""
    simulator = build_simulator(experiment, torch.device("cpu"))
    simulator.restore(states)
    models = []
    for own, params in zip(labels, simulator.local_models(), strict=True):
        network = copy.deepcopy(experiment.network.module)
        views = {name: view.clone() for name, view in experiment.network.layout.unflatten(params).items()}
        network.load_state_dict(views, strict=False)
        models.append(answering(network, experiment.dataset, readout, own))
    return models


def answering(network: nn.Module, dataset: Dataset, readout: Readout, labels: Sequence[int]) -> nn.Module:
    """A personal network as it is used: from raw inputs, by its agent's readout."""
    own = with_readout(network, readout, labels, len(dataset.classes))
    return FromRaw(own, dataset.normalisation, len(dataset.shape), dataset.target_scale).train(network.training)
