"""What a report reads: a run folder, the arms of a comparison, or the agents of a fleet that is still running.

From their tables come curves, the bytes that were spent, and which agents were missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peermask.errors import RunError
from peermask.run.result import RunResult
from peermask.store.checkpoint import list_masks
from peermask.store.folder import RunFolder
from peermask.store.sweeps import SWEEP, SweepFolder
from peermask.store.table import Floats, Table, read_rows, read_table
from peermask.task import FIGURES
from peermask.wire.frame import FRAME_BYTES

Row: TypeAlias = dict[str, str]


@dataclass(frozen=True)
class Source:
    """One run, and the folders its tables are in: its own, or one an agent."""

    result: RunResult
    folders: tuple[RunFolder, ...]

    @property
    def config(self) -> str:
        return self.folders[0].config.read_text(encoding="utf-8")

    def rows(self, table: str) -> list[Row]:
        """Read `absences.csv` or another table; a line still being written is left out."""
        return [row for folder in self.folders for row in read_rows(folder.path / table)]

    def table(self, name: str) -> Table:
        """`metrics.csv` or `traffic.csv`, likewise."""
        return read_table(*(folder.path / name for folder in self.folders), agents=len(self.result.agents))

    def masks(self) -> dict[int, tuple[Path, ...]]:
        """Files that together have all agents' masks, by round; rounds that some agent lacks are left out."""
        if len(self.folders) not in (1, len(self.result.agents)):
            return {}
        held = [list_masks(folder.masks) for folder in self.folders]
        common = sorted(set.intersection(*map(set, held)))
        return {number: tuple(one[number] for one in held) for number in common}


def open_sources(path: Path) -> list[Source]:
    """The run in a folder with those it was compared with, or the runs of a sweep that have begun."""
    if (path / SWEEP).is_file():
        runs = [path / run.path for run in SweepFolder.open(path).runs]
        begun = [source for run in runs if RunFolder(run).is_run for source in open_sources(run)]
        if not begun:
            raise RunError(f"no run of the sweep in {path} has begun yet")
        return begun
    members = path / "agents"
    if members.is_dir() and not RunFolder(path).is_run:
        return [_open_fleet(path, members)]
    found = RunResult.open(path)
    return [Source(result, (result.folder,)) for result in (found, *found.compared)]


def _open_fleet(root: Path, members: Path) -> Source:
    """Agents as far as each has come; those that have not begun are known by the others' manifest."""
    own = {_number(path): RunFolder(path) for path in members.iterdir() if RunFolder(path).is_run}
    if not own:
        raise RunError(f"no agent of the fleet in {root} has begun yet")
    opened = {agent: RunResult.open(folder.path) for agent, folder in sorted(own.items())}
    first = next(iter(opened.values()))
    agents = tuple(
        opened[known.agent].agents[known.agent] if known.agent in opened else known for known in first.agents
    )
    reached = max(result.round for result in opened.values())
    result = replace(first, root=root, agents=agents, status="going on", round=reached, hash=None)
    return Source(result, tuple(folder for _, folder in sorted(own.items())))


def _number(path: Path) -> int:
    number = path.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


# The curves of a run: what every agent reached at each evaluation, and their mean and spread.

LOSSES = ("test_loss", "validation_loss", "train_loss")
POINTS = 400  # evaluations drawn; more would not fit a screen's pixels
DIGITS = 5


@dataclass(frozen=True)
class Curves:
    """E evaluations of N agents; NaN where an agent was not there."""

    rounds: NDArray[np.int64]  # [E]
    seconds: Floats  # [E] since the start
    sent_bytes: Floats  # [E, N] so far
    measures: dict[str, Floats]  # [E, N] each


def curves_of(table: Table, figures: Sequence[str] = FIGURES["classification"]) -> Curves:
    """Read the curves of metrics.csv; of many evaluations an even choice, first and last among them."""
    chosen = even_choice(len(table.rounds), POINTS)
    # Every figure on test samples, the one that counts on held-out ones too.
    columns = (*(f"test_{name}" for name in figures), f"validation_{figures[0]}", *LOSSES, "density")
    measures = {name: table[name][chosen] for name in columns}
    seconds = _reduce(np.nanmax, table["seconds"][chosen])
    return Curves(table.rounds[chosen], seconds, table["sent_bytes"][chosen], measures)


def even_choice(count: int, most: int) -> list[int]:
    """Choose at most so many of 0..count-1, evenly spaced, including the first and the last."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(most, count))})


def spread(values: Floats) -> dict[str, Any]:
    """Mean, range and middle four fifths over the last axis: [E, N] -> lists of E."""
    low, high = np.full(len(values), np.nan), np.full(len(values), np.nan)
    known = ~np.isnan(values).all(1)
    if known.any():
        low[known], high[known] = np.nanquantile(values[known], [0.1, 0.9], axis=1)
    return {
        "mean": rounded(_reduce(np.nanmean, values)),
        "min": rounded(_reduce(np.nanmin, values)),
        "max": rounded(_reduce(np.nanmax, values)),
        "p10": rounded(low),
        "p90": rounded(high),
    }


def rounded(values: Floats, digits: int = DIGITS) -> list[Any]:
    """Plain lists with few digits, and None for what is not known: small in JSON."""
    return [
        rounded(value, digits) if value.ndim else (None if np.isnan(value) else float(f"{value:.{digits}g}"))
        for value in values
    ]


def _reduce(function: Any, values: Floats) -> Floats:
    """Reduce over agents, NaN where none is known (numpy would warn)."""
    result = np.full(len(values), np.nan)
    known = ~np.isnan(values).all(1) if values.size else np.zeros(len(values), bool)
    if known.any():
        result[known] = function(values[known], axis=1)
    return result


# Where the bytes of a run went, and what plainer ways of sending the same would have cost.


@dataclass(frozen=True)
class Spent:
    """Bytes over all links of all agents."""

    messages: int
    keyframes: int  # bodies of messages that hold a whole mask or model
    deltas: int  # bodies of messages that hold changes
    headers: int
    bitmap: float  # at 1 bit per weight
    floats: float  # at 32 bits per weight
    per_agent: Floats  # [N] over one link
    rounds: list[int]  # in which anything was sent; of many an even choice
    per_message: list[float]  # the mean message of each of these rounds

    @property
    def total(self) -> int:
        return self.keyframes + self.deltas + self.headers


def bytes_spent(traffic: Table, weights: int) -> Spent:
    """Sum up traffic.csv."""
    links = np.nan_to_num(traffic["links"])  # [R, N]
    size = np.where(links > 0, np.nan_to_num(traffic["coded_bytes"]), 0.0)  # what no one received counts for nothing
    body = np.floor(links * (size - FRAME_BYTES).clip(0))
    is_delta = np.char.endswith(traffic.words.get("kind", np.empty(links.shape, np.str_)), "delta")
    sent = links.sum()
    rounds, means = traffic.rounds[(links > 0).any(1)], _reduce(np.nanmean, np.where(links > 0, size, np.nan))
    means = means[~np.isnan(means)]
    chosen = even_choice(len(rounds), POINTS)
    return Spent(
        messages=int(sent),
        keyframes=int(body[~is_delta].sum()),
        deltas=int(body[is_delta].sum()),
        headers=int(np.floor(links * size.clip(max=FRAME_BYTES)).sum()),
        bitmap=float(sent * weights / 8),
        floats=float(sent * 4.0 * weights),
        per_agent=size.sum(0),
        rounds=rounds[chosen].tolist(),
        per_message=[round(mean, 1) for mean in means[chosen].tolist()],
    )


# Which agents were missing when, in a run over a real network.

MOST = 20_000  # rows a page can show


def faults_of(rows: list[Row]) -> dict[str, Any] | None:
    """Count absences, rows of [round, agent, neighbour not heard, why]; None for a run without a network."""
    if not rows:
        return None
    reasons = sorted({row["why"] for row in rows})
    return {
        "count": len(rows),
        "reasons": [[why, sum(row["why"] == why for row in rows)] for why in reasons],
        "replaced": sum(bool(row["used"]) for row in rows),  # an older message took its place
        "rows": [
            [int(row["round"]), int(row["agent"]), int(row["neighbour"]), reasons.index(row["why"])]
            for row in rows[:MOST]
        ],
    }
