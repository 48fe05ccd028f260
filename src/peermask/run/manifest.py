"""manifest.json and result.json: what a result depended on, and what it is."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import isnan
from pathlib import Path
from typing import Any

import torch

from peermask.algorithms import algorithms
from peermask.errors import RunError
from peermask.graph import edges_hash
from peermask.plugins import records
from peermask.registry import Options
from peermask.run.build import Experiment
from peermask.run.metrics import figures_of
from peermask.store.checked import config_digest, read_manifest
from peermask.store.checkpoint import Progress
from peermask.store.folder import RunFolder
from peermask.store.result import BY_READOUT, agent_results, mean_of
from peermask.store.table import read_table

_PACKAGES = ("peermask", "torch", "numpy", "networkx", "pydantic", "safetensors")


def manifest(experiment: Experiment, device: torch.device) -> dict[str, Any]:
    edges = experiment.mixing.links.edges()
    retentions, links, liars = experiment.retentions, experiment.links, frozenset(experiment.liars)
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config_hash": experiment.config.hash,
        "config_sha256": [config_digest(experiment.config.toml())],
        "imports": [plugin.table() for plugin in records(experiment.config.imports)],
        "seed": experiment.config.seed,
        "frozen_checksum": experiment.frozen.checksum,
        "dataset": {"name": experiment.dataset.name, "sha256": experiment.dataset.fingerprint},
        "inputs": {
            "shape": list(experiment.dataset.shape),
            "vocabulary": experiment.dataset.vocabulary,
            "normalisation": _plain(experiment.dataset.normalisation),
            "target_scale": _plain(experiment.dataset.target_scale),
        },
        "graph": {  # where it changes, of the first round
            "sha256": edges_hash(experiment.config.agents, edges),
            "links": edges,
        },
        "agents": [
            {
                "agent": agent,
                "labels": [int(label) for label in own.labels],
                "counts": [int(count) for count in own.counts],
                "retention": retentions[agent],
                "links": links[agent],
                "train": len(own.train),
                "validation": len(own.validation),
                "test": len(own.test),
                **({"liar": True} if agent in liars else {}),
            }
            for agent, own in enumerate(experiment.samples)
        ],
        "readout": experiment.readout,
        "task": experiment.dataset.task,
        "figures": list(figures_of(experiment.dataset.task, experiment.further_metrics)),
        "over_frozen_weights": algorithms[experiment.config.algorithm.name].make.over_frozen_weights,
        "classes": list(experiment.dataset.classes),
        "weights": experiment.network.layout.weights,
        "parameters": experiment.network.layout.total,
        "layers": [
            {"name": layer.name, "kind": layer.kind, "shape": list(layer.shape)}
            for layer in experiment.network.layout.masked
        ],
        "revision": code_revision(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "device": describe(device),
    }


def describe(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device}: {torch.cuda.get_device_name(device)}"
    return f"cpu: {platform.processor() or platform.machine()}"


def code_revision() -> str | None:
    """The commit of the source tree, with `+changes` if it has any; None for an installed package."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # inside another repository
    commit = git("rev-parse", "HEAD")
    return f"{commit}+changes" if commit and git("status", "--porcelain", "--", ".") else commit


def _plain(options: Options | None) -> dict[str, Any] | None:
    return None if options is None else options.model_dump()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def summary_of(experiment: Experiment, folder: RunFolder, status: str, progress: Progress, hash: str) -> dict[str, Any]:
    about = read_manifest(folder.manifest)
    table = read_table(folder.metrics, agents=len(about["agents"]))
    agents = agent_results(about, table)
    evaluated = table.there[table.rounds == progress.round].any(0)  # [N]
    for agent, known in enumerate(evaluated):
        if not known:
            lacking = f"agent {agent} in round {progress.round}"
            raise RunError(f"{folder.metrics} lacks {lacking}; restore the file, or start a new run")
    honest = [agent for agent in agents if not agent.liar]
    figures = figures_of(experiment.dataset.task, experiment.further_metrics)
    means = {f"test_{name}": mean_of([agent.value(name) for agent in honest]) for name in figures}
    if experiment.dataset.has_labels:
        means |= {
            name: mean_of([getattr(agent, name) for agent in honest])
            for name in ("test_accuracy", "test_accuracy_last", *BY_READOUT)
        }
    main = [agent.value(figures[0]) for agent in honest]
    return {
        "status": status,
        "round": progress.round,
        "hash": hash,
        "seconds": round(progress.seconds, 3),
        "algorithm": experiment.config.algorithm.name,
        "readout": experiment.readout,
        # None where no agent has anything to be tested on: NaN is no JSON.
        **{name: None if isnan(mean) else mean for name, mean in means.items()},
        f"worst_test_{figures[0]}": min((value for value in main if not isnan(value)), default=None),
        "sent_bytes": sum(agent.sent_bytes for agent in agents),
    }
