"""Merges the folders of all agents of a fleet to one ordinary run folder."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peermask.errors import NodeError
from peermask.files import write_atomically, write_json, writing
from peermask.fleet.fleet import Fleet
from peermask.fleet.journal import AGAIN, TABLES, AgentFolder, Rows, open_agent_folder, ranges
from peermask.graph import edges_hash
from peermask.run.assemble import build_simulator
from peermask.run.build import Experiment, build
from peermask.run.manifest import manifest, summary_of
from peermask.run.metrics import figures_of, metric_columns
from peermask.run.result import RunResult
from peermask.store.checkpoint import (
    Checkpoint,
    Progress,
    hash_tensors,
    list_masks,
    load_checkpoint,
    load_masks,
    save_checkpoint,
    save_masks,
)
from peermask.store.folder import RunFolder, read_result, write_result
from peermask.store.table import append_rows

LAST = ("config.toml", "result.json")  # moved last: they make a folder a run, and a run a finished one


def collect_run(fleet: Fleet, folders: Sequence[Path], out: Path, *, partial: bool = False) -> RunResult:
    """One run from the agents' folders, given in any order; finished if all agents are.

    With `partial`, folders may be missing: the run then has tables of the given ones, and no models. The same holds
    if agents have joined or left: no experiment config describes the remaining ones.
    """
    experiment = build(fleet.experiment)
    agents = _agents(fleet, folders)
    missing = missing_agents(fleet, agents)
    if missing and not partial:
        raise NodeError(
            f"no folder of {named(missing)} among the {len(agents)} given; give the folders of all agents, "
            "or use --partial to collect the given ones"
        )
    with _atomic_folder(out) as temporary:
        target = RunFolder(temporary)
        figures = figures_of(experiment.dataset.task, experiment.further_metrics)
        tables = {**TABLES, "metrics.csv": metric_columns(figures)}
        if experiment.config.asynchronous is None:
            del tables["trace.csv"]
        for name, columns in tables.items():
            _merge(temporary / name, columns, [one.tables[name] for one in agents])
        write_json(target.manifest, _manifest(experiment, fleet, agents) | _roster(fleet))
        write_atomically(target.config, fleet.experiment.toml().encode())
        if not missing and not has_changed(fleet) and all(one.is_finished for one in agents):
            progress, digest = _join_states(experiment, agents, target)
            write_result(target, summary_of(experiment, target, "finished", progress, digest))
    return RunResult.open(out)


def missing_agents(fleet: Fleet, agents: Iterable[AgentFolder]) -> list[int]:
    return sorted({member.agent for member in fleet.agents} - {one.agent for one in agents})


def has_changed(fleet: Fleet) -> bool:
    """Whether agents have joined or left."""
    return len(fleet.agents) != fleet.experiment.agents or bool(fleet.left)


def _roster(fleet: Fleet) -> dict[str, Any]:
    """Agents and links of a fleet that have changed, which the config does not have."""
    if not fleet.serial:
        return {}
    links = [[min(link), max(link)] for link in fleet.links]
    roster = {"serial": fleet.serial, "agents": [one.agent for one in fleet.agents], "left": list(fleet.left)}
    return {"roster": roster, "graph": {"sha256": edges_hash(len(fleet.numbers), links), "links": links}}


def named(agents: Sequence[int]) -> str:
    """`agent 3`, `agents 0, 4-6`."""
    return f"agent{'s' * (len(agents) > 1)} {ranges(agents)}"


def _agents(fleet: Fleet, folders: Sequence[Path]) -> list[AgentFolder]:
    """In the order of agents."""
    by_agent: dict[int, AgentFolder] = {}
    for path in folders:
        one = open_agent_folder(fleet, path)
        if one.agent in by_agent:
            raise NodeError(
                f"{by_agent[one.agent].folder.path} and {path} are both of agent {one.agent}; give one of them"
            )
        by_agent[one.agent] = one
    return [one for _, one in sorted(by_agent.items())]


@contextmanager
def _atomic_folder(out: Path) -> Iterator[Path]:
    """A temporary folder that is moved to `out` once everything is written, and deleted on any error.

    A swarm's `out` exists and contains its agents. It may be a mount point, so the temporary folder is made inside.
    """
    inside = out.is_dir()
    temporary = (out if inside else out.parent) / f".{out.name}.{os.getpid()}.part"
    try:
        with writing(out):
            (temporary / "checkpoints").mkdir(parents=True)
        yield temporary
        with writing(out):
            if inside:
                _move_into(temporary, out)
            else:
                temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move_into(temporary: Path, out: Path) -> None:
    for part in sorted(temporary.iterdir(), key=lambda part: (part.name in LAST, part.name)):
        if part.is_dir() and (out / part.name).exists():
            shutil.rmtree(out / part.name)
        part.replace(out / part.name)


def _manifest(experiment: Experiment, fleet: Fleet, agents: Sequence[AgentFolder]) -> dict[str, Any]:
    """The manifest of the whole run. Only an agent's device knows its data, which may not be on this machine."""
    whole = manifest(experiment, torch.device("cpu"))
    dataset = _dataset([one.dataset for one in agents])
    rows = {one.agent: one.about for one in agents}
    missing = sorted(set(fleet.numbers) - rows.keys())  # including those that have left
    # Of a missing agent only what follows from the config is known.
    shared = dataset == whole["dataset"] and experiment.config.partition.name != "everything"
    unknown: dict[str, Any] = {"labels": [], "counts": [], "train": None, "validation": None, "test": None}
    configured, ratios = {row["agent"]: row for row in whole["agents"]}, fleet.retentions()
    for agent in missing:
        row = configured.get(agent, {"agent": agent, "retention": ratios[agent], "links": 0, **unknown})
        rows[agent] = row if shared else row | unknown
    lacking = {"missing_agents": missing} if missing else {}
    return {**whole, "agents": [rows[agent] for agent in sorted(rows)], "dataset": dataset, **lacking}


def _dataset(datasets: Sequence[dict[str, str]]) -> dict[str, str]:
    """The data of all devices; if each had its own, a hash over all of them, so that other data is detected."""
    hashes = [own["sha256"] for own in datasets]
    if len(set(hashes)) == 1:
        return datasets[0]
    return {"name": datasets[0]["name"], "sha256": hashlib.sha256("\n".join(hashes).encode()).hexdigest()}


def _merge(path: Path, columns: Sequence[str], parts: Sequence[Rows]) -> None:
    """Write the rows of all agents by round, then agent; a table without rows too, to replace an earlier one."""
    rows = [row for part in parts for row in part]
    rows.sort(key=lambda row: (int(row["round"]), int(row["agent"])))
    append_rows(path, columns, ([row[column] for column in columns] for row in rows))


def _join_states(experiment: Experiment, agents: Sequence[AgentFolder], target: RunFolder) -> tuple[Progress, str]:
    """One checkpoint of all agents, and the hash of their states as a simulator would give it."""
    config, checksum = experiment.config, experiment.frozen.checksum
    one_agent = build_simulator(experiment, torch.device("cpu"), rows=slice(1)).tensors()
    shapes = {name: (_kind(rows), rows.shape) for name, rows in one_agent.items()}
    last = [_last_checkpoint(one, config.hash, checksum, shapes) for one in agents]
    states = {name: torch.cat([one.states[name] for one in last]) for name in shapes}  # [N, ...]
    progress = Progress(config.rounds, config.hash, checksum, seconds=max(one.progress.seconds for one in last))
    save_checkpoint(target.checkpoints, Checkpoint(progress, states, {}, {}))
    _join_masks(experiment, agents, target)
    return progress, hash_tensors(states)


def _last_checkpoint(
    one: AgentFolder, config_hash: str, checksum: str, shapes: Mapping[str, tuple[torch.dtype, torch.Size]]
) -> Checkpoint:
    """The last checkpoint of an agent, checked: of this experiment, and without NaN or infinite values."""
    path = one.last_checkpoint()
    checkpoint = load_checkpoint(path, (config_hash,), checksum)
    actual = {name: (_kind(rows), rows.shape) for name, rows in checkpoint.states.items()}
    if actual != shapes:
        odd = min(name for name in actual.keys() | shapes.keys() if actual.get(name) != shapes.get(name))
        raise NodeError(f"checkpoint {path} is not of one agent of this experiment (see {odd!r}); {AGAIN}")
    for name, rows in checkpoint.states.items():
        if rows.is_floating_point() and not bool(torch.isfinite(rows).all()):
            raise NodeError(f"checkpoint {path} holds a value that is NaN or infinite ({name}); {AGAIN}")
    return checkpoint


def _kind(rows: Tensor) -> torch.dtype:
    """One type for all counts of votes: their width depends on how many there are."""
    return torch.uint8 if rows.dtype in (torch.int16, torch.int32) else rows.dtype


def _join_masks(experiment: Experiment, agents: Sequence[AgentFolder], target: RunFolder) -> None:
    """Merge the masks of the rounds that every agent has kept."""
    snapshots = [list_masks(one.folder.masks) for one in agents]
    weights = experiment.network.layout.weights
    for number in sorted(set.intersection(*map(set, snapshots))):
        masks = np.concatenate([load_masks(of_agent[number], weights, most=1) for of_agent in snapshots])  # [N, P_w]
        save_masks(target.masks, number, masks)


def finished(folder: Path) -> bool:
    return read_result(RunFolder(folder).result).get("status") == "finished"
