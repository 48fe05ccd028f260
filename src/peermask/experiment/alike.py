"""Whether all ranks are about to compute the same: config, versions, data, network and graph, compared by hash."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import TYPE_CHECKING

import torch

from peermask.errors import RunError
from peermask.experiment.build import Experiment
from peermask.experiment.config import ExperimentConfig
from peermask.graph import edges_hash
from peermask.plugins import imported_hash

if TYPE_CHECKING:
    from peermask.ranks.group import Ranks

SHOWN = 12  # characters of a hash


def check_ranks(size: int, config: ExperimentConfig) -> None:
    """Before any process is started."""
    if size > config.agents:
        raise RunError(
            f"{size} ranks and agents = {config.agents}: a rank has at least one agent; "
            f"start at most {config.agents} ranks"
        )

    if config.asynchronous is not None:  # its order is one agent after another
        raise RunError("asynchronous: such a run cannot be divided between processes; use one process")


def check_config(ranks: Ranks, config: ExperimentConfig) -> None:
    """Before anything is built."""
    check_ranks(ranks.size, config)
    about = {"peermask": version("peermask"), "PyTorch": torch.__version__.partition("+")[0], "config": config.hash}
    _check(ranks, {**about, "plug-ins": imported_hash()})


def check_experiment(ranks: Ranks, experiment: Experiment) -> None:
    about = {
        f"{experiment.dataset.name} data": experiment.dataset.fingerprint,
        "frozen weights": experiment.frozen.checksum,
        "graph": edges_hash(experiment.config.agents, experiment.mixing.links.edges()),
    }
    _check(ranks, about)


def _check(ranks: Ranks, about: dict[str, str]) -> None:
    told: list[dict[str, str]] = [json.loads(text) for text in ranks.texts(json.dumps(about))]
    for member, theirs in zip(ranks.members, told, strict=True):
        for what, value in told[0].items():
            if theirs.get(what) != value:
                raise RunError(
                    f"{member} has {what} {(theirs.get(what) or 'of another name')[:SHOWN]}, {ranks.members[0]} has "
                    f"{value[:SHOWN]}; give all ranks the same config, data and versions"
                )
