"""What a result depended on, so that it can be made again."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from peermask.algorithms import algorithms
from peermask.experiment.build import Experiment
from peermask.experiment.metrics import figures_of
from peermask.graph import edges_hash
from peermask.plugins import records
from peermask.registry import Options

_PACKAGES = ("peermask", "torch", "numpy", "networkx", "pydantic", "safetensors")


def manifest(experiment: Experiment, device: torch.device) -> dict[str, Any]:
    edges = experiment.mixing.links.edges()
    retentions, links, liars = experiment.retentions, experiment.links, frozenset(experiment.liars)
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config_hash": experiment.config.hash,
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


def is_of_fleet(folder: Path) -> bool:
    """Whether devices made the run in a folder, and not the simulator: then only they can resume it."""
    return (folder / "absences.csv").is_file() or (folder / "agents").is_dir()


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
