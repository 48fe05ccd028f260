"""Where a report reads: a run folder, the arms of a comparison, or the agents of a fleet that is still running."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from peermask.errors import RunError
from peermask.reports.curves import Row
from peermask.run.result import RunResult
from peermask.store.checkpoint import list_masks
from peermask.store.folder import RunFolder
from peermask.store.sweeps import SWEEP, SweepFolder
from peermask.store.table import Table, read_rows, read_table


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
