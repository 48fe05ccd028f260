"""Puts the folders of all agents of a fleet together as one ordinary run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

from peermask.errors import NodeError
from peermask.experiment.build import Experiment, build, build_simulator
from peermask.experiment.checkpoint import Checkpoint, Progress, list_checkpoints, load_checkpoint, save_checkpoint
from peermask.experiment.config import load_config
from peermask.experiment.folder import (
    RunFolder,
    append_rows,
    read_json,
    read_rows,
    write_atomically,
    write_json,
    writing,
)
from peermask.experiment.kept_masks import list_masks, load_masks, save_masks
from peermask.experiment.loop import final_hash
from peermask.experiment.manifest import manifest
from peermask.experiment.metrics import METRICS, TRAFFIC
from peermask.experiment.result import RunResult, summarise
from peermask.node.fleet import Fleet
from peermask.node.journal import ABSENCES


def collect_run(fleet: Fleet, folders: Sequence[Path], out: Path) -> RunResult:
    """One run of the agents' folders, in the order of agents; finished if every agent is."""
    experiment = build(fleet.experiment)
    agents = [RunFolder(path) for path in folders]
    _check(fleet, agents)
    target = RunFolder(out)
    with writing(out):
        target.checkpoints.mkdir(parents=True, exist_ok=True)
    for name, columns in (("metrics.csv", METRICS), ("traffic.csv", TRAFFIC), ("absences.csv", ABSENCES)):
        _merge(out / name, columns, [folder.path / name for folder in agents])
    write_json(target.manifest, _manifest(experiment, agents))
    write_atomically(target.config, tomli_w.dumps(fleet.experiment.table()).encode())
    if all(folder.result.is_file() for folder in agents):
        progress, digest = _join_states(experiment, agents, target)
        write_json(target.result, summarise(experiment, target, "finished", progress, digest))
    return RunResult.open(out)


def _check(fleet: Fleet, agents: Sequence[RunFolder]) -> None:
    if len(agents) != len(fleet.agents):
        raise NodeError(f"{len(agents)} folders for {len(fleet.agents)} agents; give every agent's, in their order")
    for agent, folder in enumerate(agents):
        if not folder.is_run:
            raise NodeError(f"{folder.path} is not the folder of an agent: it has no config.toml")
        if load_config(folder.config).hash != fleet.experiment.hash:
            raise NodeError(f"{folder.path} is of another experiment than this fleet")
        rows = read_rows(folder.metrics)
        if rows and int(rows[0]["agent"]) != agent:
            raise NodeError(f"{folder.path} is of agent {rows[0]['agent']}, not {agent}; give folders in their order")


def _manifest(experiment: Experiment, agents: Sequence[RunFolder]) -> dict[str, Any]:
    """Of the whole run. What an agent holds is known on its device alone, and may not be in the data found here."""
    made = manifest(experiment, torch.device("cpu"))
    held = [read_json(folder.manifest) for folder in agents]
    rows = [row for agent, own in enumerate(held) for row in own["agents"] if row["agent"] == agent]
    return {**made, "agents": rows, "dataset": _dataset([own["dataset"] for own in held])}


def _dataset(held: Sequence[dict[str, str]]) -> dict[str, str]:
    """What all devices had; where each had its own, a hash over theirs, so that other data can be told from it."""
    hashes = [own["sha256"] for own in held]
    if len(set(hashes)) == 1:
        return held[0]
    return {"name": held[0]["name"], "sha256": hashlib.sha256("\n".join(hashes).encode()).hexdigest()}


def _merge(path: Path, columns: Sequence[str], parts: Sequence[Path]) -> None:
    """The rows of all agents by round, then agent."""
    rows = [row for part in parts for row in read_rows(part)]
    rows.sort(key=lambda row: (int(row["round"]), int(row["agent"])))
    path.unlink(missing_ok=True)
    if rows:
        append_rows(path, columns, ([row[column] for column in columns] for row in rows))


def _join_states(experiment: Experiment, agents: Sequence[RunFolder], target: RunFolder) -> tuple[Progress, str]:
    """One checkpoint of all agents, and the hash of their states as a simulator would give it."""
    config, checksum = experiment.config, experiment.frozen.checksum
    last = [load_checkpoint(list_checkpoints(folder.checkpoints)[-1], config.hash, checksum) for folder in agents]
    states = {name: torch.cat([one.states[name] for one in last]) for name in last[0].states}  # [N, ...]
    progress = Progress(config.rounds, config.hash, checksum, seconds=max(one.progress.seconds for one in last))
    save_checkpoint(target.checkpoints, Checkpoint(progress, states, {}, {}))
    _join_masks(experiment, agents, target)
    simulator = build_simulator(experiment, torch.device("cpu"))
    simulator.restore(states)
    return progress, final_hash(simulator)


def _join_masks(experiment: Experiment, agents: Sequence[RunFolder], target: RunFolder) -> None:
    """Masks of the rounds that every agent has kept."""
    kept = [list_masks(folder.masks) for folder in agents]
    weights = experiment.network.layout.weights
    for number in sorted(set.intersection(*map(set, kept))):
        masks = np.concatenate([load_masks(held[number], weights) for held in kept])  # [N, P_w]
        save_masks(target.masks, number, masks)


def finished(folder: Path) -> bool:
    done = RunFolder(folder).result
    return done.is_file() and read_json(done).get("status") == "finished"
