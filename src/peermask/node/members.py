"""The parts of an experiment for a fleet whose agents and links have changed.

The experiment does not change, nor does its hash, which agents compare: its `agents` is the number at the start. An
added agent partitions the data on its device as if it were the last of that many agents: with the partition
`everything` it gets all samples there, with any other some that another agent may have too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from peermask.experiment.build import Experiment, agents_with, build
from peermask.experiment.config_file import make_config
from peermask.graph.links import Links
from peermask.graph.mixing import build_mixing
from peermask.node.fleet import Fleet


def build_member(fleet: Fleet, agent: int) -> Experiment:
    """The experiment as one agent of the fleet needs it."""
    config = fleet.experiment
    if agent < config.agents:
        return by_roster(build(config), fleet)
    kept = fleet.retentions()[: agent + 1]
    table = {**config.table(), "agents": agent + 1, "retention": list(kept), "graph": {"name": "path"}}
    wider = make_config({key: value for key, value in table.items() if key != "imports"})
    return by_roster(replace(build(wider), config=config), fleet)


def by_roster(experiment: Experiment, fleet: Fleet) -> Experiment:
    """With the agents and links of the roster; unchanged if the roster never changed, or if links follow a schedule, in
    which agents that have left are absent."""
    if not fleet.serial or experiment.schedule.changes:
        return experiment
    kept, held = fleet.retentions(), experiment.samples.sizes
    count = len(kept)
    links = np.array(fleet.links, np.int64).reshape(-1, 2)
    both = np.concatenate([links, links[:, ::-1]])
    # Used where a server weights agents by samples; other agents do not know the number of an added agent.
    shares = np.concatenate([held, np.full(max(0, count - len(held)), held.mean())])[:count]
    return replace(
        experiment,
        agents=agents_with(kept, experiment.network, experiment.config),
        mixing=build_mixing(Links.between(both[:, 0], both[:, 1], count), shares),
    )
