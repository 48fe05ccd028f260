"""Tables as arrays [round, agent], and the rule by which an accuracy is reported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from peermask.store.table import WORDS, damaged, parse

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]

REPORTED_SHARE = 0.25  # the share of the rounds whose evaluations a reported accuracy is averaged over
REPORTED = "the evaluations in the last quarter of the rounds"  # what is written under a table


def reported(rounds: Ints, values: Floats, there: Bools) -> Floats:
    """Average each agent's evaluations in the last quarter of its rounds: [E], [E, N], [E, N] -> [N].

    With E_i the evaluations of agent i and T_i its last round, mean of v_it over {t in E_i: t > 0.75 T_i} that are
    known; NaN if none is. A single evaluation varies from round to round.
    """
    last = np.where(there, rounds[:, None], 0).max(0, initial=0)  # [N]
    late = there & ~np.isnan(values) & (rounds[:, None] > (1 - REPORTED_SHARE) * last)
    count = late.sum(0)
    total = np.where(late, values, 0.0).sum(0)
    mean = np.full(len(count), np.nan)
    mean[count > 0] = total[count > 0] / count[count > 0]
    return mean


def mean_known(values: Floats) -> float:
    """Average the values that are known; NaN if none is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


@dataclass(frozen=True)
class Table:
    """A table with at most one row per round and agent, for R rounds and N agents."""

    path: Path
    rounds: Ints  # [R] ascending
    there: Bools  # [R, N] whether an agent has a row
    numbers: dict[str, Floats]  # [R, N] by column; NaN where an agent has no row
    words: dict[str, NDArray[np.str_]]  # likewise; empty where an agent has no row

    def __contains__(self, column: str) -> bool:
        return column in self.numbers

    def __getitem__(self, column: str) -> Floats:
        if not len(self.rounds):
            return np.empty(self.there.shape)
        if column not in self.numbers:
            raise damaged(self.path, 1, f"no column {column!r}")
        return self.numbers[column]

    def reported(self, column: str) -> Floats:
        """Average each agent's last evaluations: see the function of this name. [N]"""
        return reported(self.rounds, self[column], self.there)

    def last(self, column: str) -> Floats:
        """Take each agent's last row; NaN where it has none. [N]"""
        rows, (count, agents) = self[column], self.there.shape
        if not count:
            return np.full(agents, np.nan)
        place = count - 1 - self.there[::-1].argmax(0)  # [N]; a NaN where there is no row at all
        found: Floats = rows[place, np.arange(agents)]
        return found


def read_table(*paths: Path, agents: int | None = None) -> Table:
    """Read a table, or the parts of one in several folders.

    Args:
        paths: Files that need not exist; a last row that is still being written is left out.
        agents: How many agents there are; rows of others are left out. By default as many as have rows.
    """
    cells: dict[str, list[str]] = {}
    for path in paths:
        header, rows = parse(path)
        if not rows:
            continue
        columns = dict(zip(header, zip(*rows, strict=True), strict=True))
        for name in cells or columns:
            if name not in columns:
                raise damaged(path, 1, f"no column {name!r}")
            cells.setdefault(name, []).extend(columns[name])
    number, agent = (np.array(cells.get(key, ()), np.int64) for key in ("round", "agent"))
    size = int(agent.max(initial=-1)) + 1 if agents is None else agents
    ours = agent < size
    rounds, place = np.unique(number[ours], return_inverse=True)
    at, shape = (place, agent[ours]), (len(rounds), size)
    there = np.zeros(shape, np.bool_)
    there[at] = True
    numbers, words = {}, {}
    for name, column in cells.items():
        if name in WORDS:
            known = np.array(column)[ours]
            words[name] = np.zeros(shape, known.dtype)
            words[name][at] = known
        else:
            numbers[name] = np.full(shape, np.nan)
            numbers[name][at] = np.array(column, np.float64)[ours]
    return Table(paths[0], rounds, there, numbers, words)
