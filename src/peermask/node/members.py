"""The parts of an experiment for a fleet whose agents and links have changed.

The experiment does not change, nor does its hash, which agents compare: `agents` in it is how many
began. An agent that was added cuts its samples out of the data on its device as the last of so many agents: with the
partition `everything` those are all samples there, with any other some that another agent may have too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from peermask.algorithms.contract import Agents
from peermask.experiment.build import Experiment, build
from peermask.experiment.config import make_config
from peermask.graph.links import Links
from peermask.graph.mixing import build_mixing
from peermask.masks.budget import kept_counts
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
    """With the agents and links that the roster has; the same where it never changed, or where agents only left a
    schedule: agents that are not there are not in its links."""
    if not fleet.serial or experiment.schedule.changes:
        return experiment
    kept, held = fleet.retentions(), experiment.samples.sizes
    count = len(kept)
    links = np.array(fleet.links, np.int64).reshape(-1, 2)
    both = np.concatenate([links, links[:, ::-1]])
    # Shares count where a server would weight agents; the number of samples of an added agent is not known to others.
    shares = np.concatenate([held, np.full(max(0, count - len(held)), held.mean())])[:count]
    return replace(
        experiment,
        agents=Agents(
            tuple(range(count)),
            kept_counts(experiment.network.layout, kept, experiment.config.mask),
            torch.tensor(kept),
        ),
        mixing=build_mixing(Links.between(both[:, 0], both[:, 1], count), shares),
    )
