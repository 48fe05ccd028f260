"""The openings of an experiment: what agents are taken to have sent before their first message."""

from __future__ import annotations

from peermask.algorithms.contract import Agents, Payload, Setting, make_algorithm
from peermask.experiment.build import Experiment
from peermask.masks.masker import Masker


def openings(experiment: Experiment, agents: Agents) -> Payload:
    """[A, ...] on the CPU; nothing where the algorithm has no opening."""
    config, network = experiment.config, experiment.network
    masker = Masker(network.layout, experiment.frozen.values, config.mask, experiment.frozen.given)
    setting = Setting(network, masker, config.seed, experiment.retentions[: config.agents])
    return make_algorithm(config.algorithm.name, config.algorithm.options, setting).opening(agents)
