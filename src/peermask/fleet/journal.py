"""The folder of one agent: its tables, checkpoints and absences, in the files of an ordinary run.

It also has `absences.csv`: which neighbour's message was missing in which round, why, and what replaced it.
In an asynchronous run `trace.csv` says which message of each neighbour it used in which round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from peermask.config.file import read_config
from peermask.errors import NodeError, RunError
from peermask.files import read_json, write_atomically, write_json, writing
from peermask.fleet.admission import Sent
from peermask.fleet.environment import Line
from peermask.fleet.fleet import Fleet
from peermask.fleet.puller import Absence
from peermask.run.build import Experiment
from peermask.run.ledger import TRAFFIC
from peermask.run.manifest import manifest
from peermask.run.metrics import CONFUSION, METRICS
from peermask.run.trace import TRACE
from peermask.store.checkpoint import (
    Checkpoint,
    checkpoint_name,
    forget_checkpoints_after,
    forget_masks_after,
    last_good,
    list_checkpoints,
)
from peermask.store.folder import RunFolder, clear_leftovers, read_result, round_of
from peermask.store.table import Extent, append_rows, check_extents, forget_after, read_rows, read_table
from peermask.wire.cost import in_turn, message_measures
from peermask.wire.schema import Payload

ABSENCES = ("round", "agent", "neighbour", "why", "used")


class Journal:
    def __init__(self, experiment: Experiment, path: Path, agent: int, run: str = "") -> None:
        """`run` is the id of the fleet."""
        self.experiment, self.agent, self.run, self.folder = experiment, agent, run, RunFolder(path)
        self.absences = path / "absences.csv"
        self.sent_before = 0.0  # bytes, from traffic.csv
        self._used: list[list[object]] = []  # rows of trace.csv that are not written yet
        self._costs: dict[int, list[float]] = {}  # of rounds whose row is not written yet

    def open(self, say: Callable[[str], None]) -> Checkpoint | None:
        """Create the folder, or return the last good checkpoint in it."""
        config = self.experiment.config
        if not self.folder.is_run:
            self.folder.create()
            about = manifest(self.experiment, torch.device("cpu"))
            # So that a copy of the folder still says which agent's it is.
            write_json(self.folder.manifest, {**about, **self._owner()})
            write_atomically(self.folder.config, config.toml().encode())  # last: this file makes it a run folder
            return None
        clear_leftovers(self.folder, self.absences, self.folder.trace)
        earlier = read_config(self.folder.config).hash
        if earlier != config.hash:
            raise NodeError(
                f"{self.folder.path} holds a run of config {earlier}, not {config.hash}; give another --out"
            )
        about = read_json(self.folder.manifest)
        for word, expected in self._owner().items():
            if about.get(word, expected) != expected:
                raise NodeError(
                    f"{self.folder.path} is of {word} {about[word]!r}, not {expected!r}; give another --out"
                )
        checkpoint = last_good(self.folder.checkpoints, (config.hash,), self.experiment.frozen.checksum, say)
        if self.folder.result.is_file():
            return checkpoint
        done = checkpoint.progress.round if checkpoint else 0
        forget_checkpoints_after(self.folder.checkpoints, done)
        self._cut_tables(checkpoint.progress.tables if checkpoint else {}, done, say)
        if checkpoint is not None and checkpoint.losses:  # the last round is evaluated after a checkpoint of it
            forget_after(self.folder.metrics, done - 1)
        forget_masks_after(self.folder.masks, done)
        traffic = read_table(self.folder.traffic)
        self.sent_before = float(np.nansum(traffic["links"] * traffic["coded_bytes"]))
        return checkpoint

    def checkpoint_before(self, round: int) -> int | None:
        """The round of the last checkpoint before `round`; 0 for the start, if no checkpoint was deleted yet."""
        saved = [round_of(path) for path in list_checkpoints(self.folder.checkpoints)]
        if not saved or saved[0] <= self.experiment.config.checkpoint.every:
            saved = [0, *saved]
        return max((number for number in saved if number < round), default=None)

    def roll_back(self, round: int) -> None:
        """Drop checkpoints after a round; `open` drops rows."""
        forget_checkpoints_after(self.folder.checkpoints, round)
        self._used, self._costs = [], {}

    def _cut_tables(self, extents: Mapping[str, Extent], done: int, say: Callable[[str], None]) -> None:
        """Drop rows after a round. The agent's state does not depend on tables: one that is damaged is set aside."""
        for path in (self.folder.metrics, self.folder.traffic, self.absences, self.folder.trace):
            extent = {path.name: extents[path.name]} if path.name in extents else {}
            try:
                check_extents(self.folder.path, extent, self.folder.checkpoints / checkpoint_name(done))
                forget_after(path, done)
                read_rows(path)
            except RunError as error:
                aside = path.with_name(f"{path.name}.damaged-{done}")
                with writing(aside):
                    path.replace(aside)
                what = str(error).partition("; restore")[0]
                say(Line(f"{what}; set aside as {aside.name}, its rows are missing", "damaged", "warning"))

    def _owner(self) -> dict[str, object]:
        return {"agent": self.agent, "fleet": self.run}

    def record(self, round: int, shared: Payload) -> None:
        """Compute what a message costs by other ways of counting; `write_traffic` adds what was actually sent."""
        if shared:
            measures = message_measures(shared, self.experiment.network.layout.sizes, in_turn)
            self._costs[round] = [float(of_agents[0]) for of_agents in measures]

    def write_traffic(self, sent: Mapping[int, Sent], before: int) -> None:
        """Write the rows of rounds below `before`, which no neighbour needs any more: frames and mean size."""
        rows: list[list[object]] = []
        for number in sorted(number for number in self._costs if number < before):
            paper, ones, bitmap, entropy = self._costs.pop(number)
            of_round = sent.get(number, Sent())
            coded = of_round.bytes / of_round.frames if of_round.frames else 0
            counted: list[object] = [int(paper), int(ones), int(bitmap), f"{entropy:.7g}", f"{coded:.10g}"]
            rows.append([number, self.agent, of_round.frames, *counted, of_round.kind])
        if rows:
            append_rows(self.folder.traffic, TRAFFIC, rows)

    def write_absences(self, absent: Iterable[Absence]) -> None:
        rows = [[a.round, self.agent, a.neighbour, a.why, "" if a.used is None else a.used] for a in absent]
        if rows:
            append_rows(self.absences, ABSENCES, rows)

    def note_used(self, round: int, rounds: Mapping[int, int]) -> None:
        """Which message of each neighbour was used; 0 where it had sent none."""
        self._used += [[round, self.agent, j, used] for j, used in rounds.items()]

    def write_trace(self) -> None:
        if self._used:
            append_rows(self.folder.trace, TRACE, self._used)
            self._used = []

    def absent_rounds(self) -> dict[int, list[int]]:
        """Neighbour -> rounds in which it was missing, including those before restarts."""
        missed: dict[int, list[int]] = defaultdict(list)
        for row in read_rows(self.absences):
            missed[int(row["neighbour"])].append(int(row["round"]))
        return dict(sorted(missed.items()))

    def received_nothing(self, neighbours: Iterable[int]) -> bool:
        """Whether messages were sent and none received in any round, including those before restarts."""
        if self.experiment.config.asynchronous is not None:
            rows = read_rows(self.folder.trace)
            return bool(rows) and all(row["heard"] == "0" for row in rows)
        played, absent = {int(row["round"]) for row in read_rows(self.folder.traffic)}, self.absent_rounds()
        return bool(played) and all(played <= set(absent.get(j, ())) for j in neighbours)


def changes(round: int, before: Iterable[Absence], now: Iterable[Absence]) -> list[str]:
    """A line for every neighbour that is missing or back since the previous round."""
    missing, absent = {a.neighbour for a in before}, {a.neighbour: a for a in now}
    lines: list[str] = [
        Line(f"round {round}: agent {j} is back", "back", neighbour=j) for j in sorted(missing - absent.keys())
    ]
    for j in sorted(absent.keys() - missing):
        why, used = absent[j].why, absent[j].used
        instead = "it is left out" if used is None else f"its message of round {used} is used"
        text = f"round {round}: agent {j} is {why}; {instead}"
        lines.append(Line(text, "absent", "warning", neighbour=j, why=why, used=used))
    return lines


def ranges(rounds: Iterable[int]) -> str:
    """`3, 7-9`."""
    parts: list[list[int]] = []
    for number in sorted(rounds):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


# The folder of one agent, copied from its device: which agent's it is, and that it is complete.
#
# A copy may be incomplete, mixed up or of another agent; each of these is a one-line error that names the file.

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
    read_result(folder.result)  # which has the digests of the tables
    tables: dict[str, Rows] = {name: read_rows(path / name) for name in TABLES}
    agent = manifest.get("agent")
    if type(agent) is not int:  # the name of a folder says nothing
        raise NodeError(f"{path} does not say which agent it is of (manifest.json: agent); {AGAIN}")
    if agent not in fleet.numbers:
        raise NodeError(f"{path} is of agent {agent}; this fleet has agents 0 to {fleet.numbers[-1]}")
    for name, rows in tables.items():
        strange = next((row["agent"] for row in rows if int(row["agent"]) != agent), None)
        if strange is not None:
            raise NodeError(f"{path / name} has a row of agent {strange}, but its folder is of agent {agent}; {AGAIN}")
    if folder.result.is_file() and not tables["metrics.csv"]:
        raise NodeError(f"{folder.metrics} has no row of agent {agent}, which has finished; {AGAIN}")
    return AgentFolder(agent, folder, *_own(folder, manifest, agent), tables)


def _own(folder: RunFolder, manifest: dict[str, Any], agent: int) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        about = next(row for row in manifest["agents"] if row["agent"] == agent)
        dataset = {key: str(manifest["dataset"][key]) for key in ("name", "sha256")}
        [int(label) for label in about["labels"]], float(about["retention"]), int(about["links"])
    except (KeyError, TypeError, ValueError, StopIteration):
        raise NodeError(f"{folder.manifest} does not say what agent {agent} holds (agents, dataset); {AGAIN}") from None
    return about, dataset
