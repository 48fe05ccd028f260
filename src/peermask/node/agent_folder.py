"""The folder of one agent, copied from its device: which agent's it is, and that it is complete.

A copy may be incomplete, mixed up or of another agent; each of these is a one-line error that names the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from peermask.errors import NodeError
from peermask.experiment.checked import read_result
from peermask.experiment.checkpoint import list_checkpoints
from peermask.experiment.config_file import read_config
from peermask.experiment.folder import RunFolder
from peermask.experiment.metrics import CONFUSION, METRICS, TRAFFIC
from peermask.experiment.table import read_rows
from peermask.experiment.trace_file import TRACE
from peermask.files import read_json
from peermask.node.fleet import Fleet
from peermask.node.journal import ABSENCES

TABLES = {
    "metrics.csv": METRICS,
    "traffic.csv": TRAFFIC,
    "absences.csv": ABSENCES,
    "confusion.csv": CONFUSION,
    "trace.csv": TRACE,
}
Rows: TypeAlias = Sequence[Mapping[str, str]]
AGAIN = "copy it from its device again"


@dataclass(frozen=True)
class AgentFolder:
    agent: int
    folder: RunFolder
    about: dict[str, Any]  # the agent's row of its manifest
    dataset: dict[str, str]  # name and sha256 of the data on its device
    tables: dict[str, Rows]  # by file name

    @property
    def is_finished(self) -> bool:
        return self.folder.result.is_file()

    def last_checkpoint(self) -> Path:
        saved = list_checkpoints(self.folder.checkpoints)
        if not saved:
            raise NodeError(f"{self.folder.checkpoints} holds no checkpoint of agent {self.agent}; {AGAIN}")
        return saved[-1]


def open_agent_folder(fleet: Fleet, path: Path) -> AgentFolder:
    folder = RunFolder(path)
    odd = next((inner for inner in path.rglob("*") if not inner.is_file() and not inner.is_dir()), None)
    if odd is not None:  # reading a pipe would block
        raise NodeError(f"{odd} is neither a file nor a folder; {AGAIN}")
    if not folder.is_run:
        raise NodeError(f"{path} is not the folder of an agent: it has no config.toml")
    if read_config(folder.config).hash != fleet.experiment.hash:
        raise NodeError(f"{path} is of another experiment than this fleet")
    manifest = read_json(folder.manifest)
    if manifest.get("fleet", fleet.run) != fleet.run:
        raise NodeError(f"{path} is of fleet {manifest['fleet']!r}, not {fleet.run!r}")
    tables: dict[str, Rows] = {name: read_rows(path / name) for name in TABLES}
    agent = _whose(folder, manifest, tables["metrics.csv"])
    if agent not in fleet.numbers:
        raise NodeError(f"{path} is of agent {agent}; this fleet has agents 0 to {fleet.numbers[-1]}")
    for name, rows in tables.items():
        strange = next((row["agent"] for row in rows if int(row["agent"]) != agent), None)
        if strange is not None:
            raise NodeError(f"{path / name} has a row of agent {strange}, but its folder is of agent {agent}; {AGAIN}")
    if folder.result.is_file() and not tables["metrics.csv"]:
        raise NodeError(f"{folder.metrics} has no row of agent {agent}, which has finished; {AGAIN}")
    return AgentFolder(agent, folder, *_own(folder, manifest, agent), tables)


def _whose(folder: RunFolder, manifest: dict[str, Any], rows: Rows) -> int:
    """From the files that contain its number, since the folder may have been renamed."""
    result = read_result(folder.result)
    said = [held.get("agent") for held in (manifest, result)] + [int(row["agent"]) for row in rows[:1]]
    agent = next((number for number in said if type(number) is int), None)
    if agent is None:
        raise NodeError(f"{folder.path} does not say which agent it is of (manifest.json: agent); {AGAIN}")
    return agent


def _own(folder: RunFolder, manifest: dict[str, Any], agent: int) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        about = next(row for row in manifest["agents"] if row["agent"] == agent)
        dataset = {key: str(manifest["dataset"][key]) for key in ("name", "sha256")}
        [int(label) for label in about["labels"]], float(about["retention"]), int(about["links"])
    except (KeyError, TypeError, ValueError, StopIteration):
        raise NodeError(f"{folder.manifest} does not say what agent {agent} holds (agents, dataset); {AGAIN}") from None
    return about, dataset
