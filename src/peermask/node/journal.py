"""The folder of one agent: its tables, checkpoints and absences, in the files of an ordinary run.

It also has `absences.csv`: which neighbour's message was missing in which round, why, and what replaced it.
In an asynchronous run `trace.csv` says which message of each neighbour it used in which round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from peermask.algorithms.contract import Payload
from peermask.engine.round import in_turn
from peermask.engine.traffic import message_measures
from peermask.errors import NodeError
from peermask.experiment.build import Experiment
from peermask.experiment.checkpoint import Checkpoint, checkpoint_name, forget_checkpoints_after, last_good
from peermask.experiment.config_file import read_config
from peermask.experiment.folder import RunFolder
from peermask.experiment.kept_masks import forget_masks_after
from peermask.experiment.lock import clear_leftovers
from peermask.experiment.manifest import manifest
from peermask.experiment.metrics import TRAFFIC, forget_rounds_after, read_traffic
from peermask.experiment.table import append_rows, check_extents, forget_after, read_rows
from peermask.experiment.trace_file import TRACE
from peermask.files import read_json, write_atomically, write_json
from peermask.node.lines import Line
from peermask.node.puller import Absence
from peermask.node.tally import Sent

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
        held = read_config(self.folder.config).hash
        if held != config.hash:
            raise NodeError(f"{self.folder.path} holds a run of config {held}, not {config.hash}; give another --out")
        about = read_json(self.folder.manifest)
        for word, own in self._owner().items():
            if about.get(word, own) != own:
                raise NodeError(f"{self.folder.path} is of {word} {about[word]!r}, not {own!r}; give another --out")
        checkpoint = last_good(self.folder.checkpoints, (config.hash,), self.experiment.frozen.checksum, say)
        if self.folder.result.is_file():
            return checkpoint
        done = checkpoint.progress.round if checkpoint else 0
        if checkpoint is not None:
            check_extents(self.folder.path, checkpoint.progress.tables, self.folder.checkpoints / checkpoint_name(done))
        forget_checkpoints_after(self.folder.checkpoints, done)
        forget_rounds_after(self.folder, done)
        if checkpoint is not None and checkpoint.losses:  # the last round is evaluated after a checkpoint of it
            forget_after(self.folder.metrics, done - 1)
        for table in (self.absences, self.folder.trace):
            forget_after(table, done)
        forget_masks_after(self.folder.masks, done)
        rows = read_traffic(self.folder)
        self.sent_before = sum(int(row["links"]) * float(row["coded_bytes"]) for row in rows)
        return checkpoint

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
        played, absent = len(read_rows(self.folder.traffic)), self.absent_rounds()
        return played > 0 and all(len(absent.get(j, ())) >= played for j in neighbours)


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
