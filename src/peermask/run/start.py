"""Start of a run: its experiments, the device, and what ranks tell each other before the first round."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from peermask.compute.device import enough_memory, pick_device
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import make_config
from peermask.data.dataset import Dataset
from peermask.errors import RunError
from peermask.graph import edges_hash
from peermask.plugins import imported_hash
from peermask.run.assemble import wake
from peermask.run.build import Experiment, build
from peermask.run.execution import Execution, Status
from peermask.run.ledger import LINKS, shards_of
from peermask.run.loop import play
from peermask.run.rank_exchange import DTYPES
from peermask.store.checkpoint import Checkpoint, Progress
from peermask.store.folder import RunFolder

if TYPE_CHECKING:
    from peermask.run.rank_group import Ranks

OVER = "over"  # what the first rank says of a run that needs no further rounds
HASH_CHARACTERS = 12  # in a message


def device_for(config: ExperimentConfig, name: str) -> torch.device:
    """Pick the device of a config; the CPU for agents that run one by one."""
    if config.traced_by is None or name == "cpu":
        return pick_device(name)
    if name != "auto":
        raise RunError(f"{config.traced_by}: agents are computed one by one, on a CPU; use --device cpu, not {name}")
    return torch.device("cpu")


def build_arms(
    config: ExperimentConfig, execution: Execution, dataset: Dataset | None = None, module: nn.Module | None = None
) -> dict[str, Experiment]:
    """The experiment of each algorithm that a config compares; all ranks have the same."""
    ranks = execution.ranks
    if ranks is not None:
        check_ranks(ranks.size, config)
        versions = {"peermask": version("peermask"), "PyTorch": torch.__version__.partition("+")[0]}
        _check_same(ranks, {**versions, "config": config.hash, "plug-ins": imported_hash()})
    device = device_for(config, execution.device)
    wake(device)
    with enough_memory(device):
        experiments = {name: build(arm, dataset, module) for name, arm in config.arms().items()}
    if ranks is not None:
        for experiment in experiments.values():
            inputs = {
                f"{experiment.dataset.name} data": experiment.dataset.fingerprint,
                "frozen weights": experiment.frozen.checksum,
                "graph": edges_hash(config.agents, experiment.mixing.links.edges()),
            }
            _check_same(ranks, inputs)
    return experiments


def take_part(config: ExperimentConfig | None, execution: Execution) -> Status:
    """Compute some of a run's agents, as a rank other than the first.

    Args:
        config: The experiment; that of the first rank if None.
        execution: Device and ranks; the first rank gives `run_experiment` the same.

    Returns:
        "finished" or "interrupted", as on the first rank.

    Raises:
        PeermaskError: This rank's config, data or version is not the first's, or a rank was lost.

    Examples:
        >>> import peermask
        >>> config = peermask.make_config({"agents": 4, "rounds": 2, "model": "mlp"})
        >>> with peermask.join_ranks() as ranks:  # here there is one process
        ...     execution = peermask.Execution(ranks=ranks)
        ...     if ranks is None or ranks.first:
        ...         status = peermask.run_experiment(config, "run", execution=execution).status
        ...     else:
        ...         status = peermask.take_part(config, execution)
        >>> status
        'finished'
    """
    ranks, device = execution.ranks, pick_device(execution.device)
    if ranks is None:
        raise RunError("execution.ranks is None: this is the only process; use run_experiment, or peermask.join_ranks")
    told = ranks.broadcast_text()
    # What it imports is named on every rank's command line: another process does not say what is executed here.
    config = config or make_config({key: value for key, value in tomllib.loads(told).items() if key != "imports"})
    status: Status = "finished"
    for name, experiment in build_arms(config, execution).items():
        begun = share_checkpoint(ranks, config.agents)
        if begun is None:
            continue
        folder, start = begun
        status = play(experiment, name, folder, device, replace(execution, writes="never"), start).status
        if status == "interrupted":
            break
    return status


def share_checkpoint(
    ranks: Ranks, agents: int, folder: RunFolder | None = None, start: Checkpoint | None = None
) -> tuple[RunFolder, Checkpoint] | None:
    """Send every rank the rows of its agents, from the first, which alone has folder and checkpoint.

    Returns:
        The folder and this rank's part of the checkpoint; None for a run that is over.
    """
    text = ""
    if folder is not None and start is not None:
        shapes = {name: (DTYPES.index(rows.dtype), list(rows.shape)) for name, rows in start.tensors().items()}
        about = {"folder": str(folder.path), "remedy": ranks.control.remedy, "progress": asdict(start.progress)}
        text = json.dumps({**about, "shapes": shapes})
    text = ranks.broadcast_text(text)
    if text == OVER:
        return None
    if folder is None or start is None:
        first: dict[str, Any] = json.loads(text)
        folder, ranks.control.remedy = RunFolder(Path(first["folder"])), first["remedy"]
        shapes = first["shapes"].items()
        like = {name: torch.empty(shape, dtype=DTYPES[code], device="meta") for name, (code, shape) in shapes}
        start = Checkpoint.of(Progress(**{**first["progress"], "tables": {}}), like)
    shards = ranks.shards(agents)
    states = {name: ranks.scatter(rows, shards) for name, rows in start.states.items()}
    sent = {}
    if LINKS in start.sent:  # where links change, all know which receivers remember which senders
        sent[LINKS] = ranks.broadcast(start.sent[LINKS])
        shards = shards_of(sent[LINKS], shards)
    sent |= {name: ranks.scatter(rows, shards) for name, rows in start.sent.items() if name != LINKS}
    losses = {name: ranks.broadcast(values) for name, values in start.losses.items()}
    return folder, Checkpoint(start.progress, states, sent, losses)


def check_ranks(size: int, config: ExperimentConfig) -> None:
    """Check a number of ranks before any process is started."""
    if size > config.agents:
        raise RunError(
            f"{size} ranks and agents = {config.agents}: a rank has at least one agent; "
            f"start at most {config.agents} ranks"
        )
    if config.traced_by is not None:  # its order is one agent after another
        raise RunError(f"{config.traced_by}: such a run cannot be divided between processes; use one process")


def _check_same(ranks: Ranks, inputs: dict[str, str]) -> None:
    """Check that all ranks have the same inputs, by their hashes or versions."""
    first, *others = (json.loads(text) for text in ranks.all_gather_text(json.dumps(inputs)))
    for member, theirs in zip(ranks.members[1:], others, strict=True):
        for name, value in first.items():
            if theirs.get(name) != value:
                other = theirs.get(name) or "of another name"
                raise RunError(
                    f"{member} has {name} {other[:HASH_CHARACTERS]}, {ranks.members[0]} has {value[:HASH_CHARACTERS]}; "
                    "give all ranks the same config, data and versions"
                )
