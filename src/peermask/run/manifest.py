"""manifest.json and result.json: what a result depended on, and what it is; a resumed run depends on the same."""

from __future__ import annotations

import logging
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import isnan
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from peermask.algorithms import algorithms
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import read_config
from peermask.errors import RunError
from peermask.files import read_json, write_atomically, write_json
from peermask.graph import edges_hash
from peermask.plugins import Plugin, changed, find_plugins, of_name, records
from peermask.run.build import Experiment
from peermask.run.metrics import figures_of
from peermask.store.checkpoint import Progress
from peermask.store.folder import RunFolder, check_config, check_rows, config_digest, read_manifest, read_result
from peermask.store.result import BY_READOUT, agent_results, mean_of
from peermask.store.table import read_table
from peermask.task import flatten

logger = logging.getLogger(__name__)

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
            "normalisation": experiment.dataset.normalisation and experiment.dataset.normalisation.model_dump(),
            "target_scale": experiment.dataset.target_scale and experiment.dataset.target_scale.model_dump(),
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


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def summary_of(experiment: Experiment, folder: RunFolder, status: str, progress: Progress, hash: str) -> dict[str, Any]:
    about = read_manifest(folder.manifest)
    table = read_table(folder.metrics, agents=len(about["agents"]))
    agents = agent_results(about, table)
    check_rows(table, [progress.round], len(agents))
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


# The plug-ins of a run: recorded in its manifest, and found again when code is needed. Tables, `show` and `report` need
# none: they read what was written.


def recorded_plugins(about: Mapping[str, Any], path: Path) -> list[Plugin]:
    """The plug-ins that a manifest records."""
    try:
        return [Plugin.model_validate(one) for one in about.get("imports", [])]
    except (ValidationError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise RunError(f"{path} is damaged (imports: {reason}); restore the file, or start a new run") from None


def find_recorded_plugins(root: Path, *, quiet: bool = False) -> tuple[str, ...]:
    """Import the plug-ins of the run or comparison in a folder, if the user named them; their names on this machine."""
    for path in (root / "manifest.json", *sorted(root.glob("*/manifest.json"))):
        if path.is_file():
            return find_plugins(recorded_plugins(read_json(path), path), str(root), quiet=quiet)
    compare = root / "compare.toml"  # of a comparison that was cut off before its first run: names without hashes
    named = (read_config(compare, unchecked=True).imports if compare.is_file() else None) or ()
    return find_plugins(map(of_name, named), str(root), quiet=quiet)


# Resuming a run: the same experiment, perhaps for more rounds; any other difference is an error.

NAMED_KEYS = 3  # differences; more would not be read


def check_same(experiment: Experiment, folder: RunFolder) -> None:
    """Check that a run is resumed with the same config (except for more rounds), data and network."""
    before = read_manifest(folder.manifest)
    check_config(folder, before)
    check_same_config(read_config(folder.config), experiment.config, folder)
    if before["dataset"]["sha256"] != experiment.dataset.fingerprint:
        raise RunError(
            f"{folder.path} was run on {before['dataset']['name']} data with hash {before['dataset']['sha256'][:12]}, "
            f"here it is {experiment.dataset.name} {experiment.dataset.fingerprint[:12]}; "
            "use the original data (in Python: dataset=)"
        )
    if before["frozen_checksum"] != experiment.frozen.checksum:
        raise RunError(
            f"{folder.path} was run with frozen weights {before['frozen_checksum']}, here they are "
            f"{experiment.frozen.checksum}: another module, or another version of this program; "
            "use the original module, or start a new run"
        )


def check_same_config(before: ExperimentConfig, now: ExperimentConfig, folder: RunFolder) -> None:
    one, other = flatten(before.table()), flatten(now.table())
    if keys := [key for key in one | other if key not in ("rounds", "imports") and one.get(key) != other.get(key)]:
        told = ", ".join(
            f"{key} = {one.get(key, 'nothing')}, not {other.get(key, 'nothing')}" for key in keys[:NAMED_KEYS]
        )
        more = f", and {len(keys) - NAMED_KEYS} more" if len(keys) > NAMED_KEYS else ""
        raise RunError(f"{folder.path} was run with {told}{more}; only rounds can be increased: start a new run")
    if before.traced_by is not None and now.rounds > before.rounds:
        raise RunError(
            f"{folder.path} has {before.traced_by}: some agents may have ended long before others, so rounds cannot be "
            "increased; start a new run"
        )
    if now.rounds < before.rounds:
        raise RunError(f"{folder.path} is a run of {before.rounds} rounds, not {now.rounds}; it can only be increased")


def is_over(folder: RunFolder, config: ExperimentConfig) -> bool:
    """Whether a run has come to the end that a config asks for."""
    if not folder.result.is_file():
        return False
    done = read_result(folder.result)
    if done["status"] == "converged" and config.rounds > read_config(folder.config).rounds:
        raise RunError(
            f"{folder.path} stopped at round {done['round']} because accuracy no longer improved "
            f"(stop.patience = {config.stop.patience}); more rounds would change nothing"
        )
    return done["status"] == "converged" or int(done["round"]) >= config.rounds


def extend(folder: RunFolder, config: ExperimentConfig) -> None:
    """Extend a run to more rounds. Interrupted after any of these steps, it can still be resumed."""
    if config.rounds <= read_config(folder.config).rounds:
        return
    about = read_manifest(folder.manifest)
    earlier = checkpoint_hashes(read_config(folder.config).hash, about)
    text = config.toml()
    digests = [*about["config_sha256"], config_digest(text)]
    hashes = {"config_hash": config.hash, "earlier_hashes": list(earlier), "config_sha256": digests}
    write_json(folder.manifest, {**about, **hashes})
    folder.result.unlink(missing_ok=True)
    write_atomically(folder.config, text.encode())


def note_plugins(folder: RunFolder, config: ExperimentConfig) -> None:
    """Say which plug-ins have changed, and record the present ones beside the earlier ones."""
    about, now = read_manifest(folder.manifest), records(config.imports)
    before = recorded_plugins(about, folder.manifest)
    lines = changed(before, now)
    for line in lines:
        logger.warning(f"{folder.path}: {line}; the present version is used")
    if lines:
        earlier = [*about.get("earlier_imports", ()), *(plugin.table() for plugin in before)]
        imports = [plugin.table() for plugin in now]
        write_json(folder.manifest, {**about, "imports": imports, "earlier_imports": earlier})


def checkpoint_hashes(config_hash: str, about: dict[str, Any]) -> tuple[str, ...]:
    """Hashes that checkpoints of a run may have: of its config, and of that before its rounds were increased."""
    return tuple(dict.fromkeys((config_hash, *about.get("earlier_hashes", ()))))
