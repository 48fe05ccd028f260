"""Check that all ranks have the same inputs: config, versions, data, network and graph, compared by hash."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import TYPE_CHECKING

import torch

from peermask.config.experiment import ExperimentConfig
from peermask.errors import RunError
from peermask.graph import edges_hash
from peermask.plugins import imported_hash
from peermask.run.build import Experiment

if TYPE_CHECKING:
    from peermask.run.rank_group import Ranks

HASH_CHARACTERS = 12  # in a message


def check_ranks(size: int, config: ExperimentConfig) -> None:
    """Check a number of ranks before any process is started."""
    if size > config.agents:
        raise RunError(
            f"{size} ranks and agents = {config.agents}: a rank has at least one agent; "
            f"start at most {config.agents} ranks"
        )

    if config.traced_by is not None:  # its order is one agent after another
        raise RunError(f"{config.traced_by}: such a run cannot be divided between processes; use one process")


def check_config(ranks: Ranks, config: ExperimentConfig) -> None:
    """Compare what is known before anything is built."""
    check_ranks(ranks.size, config)
    inputs = {"peermask": version("peermask"), "PyTorch": torch.__version__.partition("+")[0], "config": config.hash}
    _check(ranks, {**inputs, "plug-ins": imported_hash()})


def check_experiment(ranks: Ranks, experiment: Experiment) -> None:
    inputs = {
        f"{experiment.dataset.name} data": experiment.dataset.fingerprint,
        "frozen weights": experiment.frozen.checksum,
        "graph": edges_hash(experiment.config.agents, experiment.mixing.links.edges()),
    }
    _check(ranks, inputs)


def _check(ranks: Ranks, inputs: dict[str, str]) -> None:
    first, *others = (json.loads(text) for text in ranks.texts(json.dumps(inputs)))
    for member, theirs in zip(ranks.members[1:], others, strict=True):
        for name, value in first.items():
            if theirs.get(name) != value:
                other = theirs.get(name) or "of another name"
                raise RunError(
                    f"{member} has {name} {other[:HASH_CHARACTERS]}, {ranks.members[0]} has {value[:HASH_CHARACTERS]}; "
                    "give all ranks the same config, data and versions"
                )
