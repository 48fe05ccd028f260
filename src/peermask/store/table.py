"""Tables that only grow: one row per agent and round or evaluation, read without trust, as rows or as arrays
[round, agent]; and the rule by which an accuracy is reported."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peermask.errors import RunError
from peermask.files import write_atomically, writing

TABLES = ("metrics.csv", "traffic.csv", "absences.csv", "trace.csv")  # that only grow; the last two of fleets
RESULT_TABLES = (*TABLES, "confusion.csv")  # the last is replaced at every evaluation
KEYS = "round,agent"  # the first columns of every table
WHOLE = frozenset(
    {"round", "agent", "links", "neighbour", "label", "answer", "samples", "heard"}
)  # columns of counts and numbers of things
WORDS = frozenset({"kind", "why", "used"})  # columns that may hold a word, or nothing; all others hold numbers


def append_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Add rows to a table, with its header if it is new."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    with writing(path), path.open("a+", encoding="utf-8") as file:
        file.seek(0)
        header = file.readline().rstrip("\n")
        if not header:
            table.writerow(columns)
        elif header != ",".join(columns):
            raise damaged_error(path, 1, "not the columns that this version writes")
        table.writerows(rows)
        file.write(text.getvalue())


def forget_after(path: Path, round: int) -> None:
    """Drop rows of later rounds, and a last row cut off by a crash: a resumed run writes them again."""
    text = _table_text(path)
    if text is None:
        return
    lines = text.split("\n")[:-1]  # what follows the last line end is cut off
    earlier = lines[:1]
    for number, line in enumerate(lines[1:], 2):
        key = line.split(",", 1)[0]
        if not _is_whole(key):
            raise damaged_error(path, number, f"round {key[:20]!r} is not a valid number")
        if int(key) <= round:
            earlier.append(line)
    write_atomically(path, "".join(f"{line}\n" for line in earlier).encode())


class Extent(NamedTuple):
    """Extent of a table at some time, with a hash of its content."""

    size: int  # bytes
    sha256: str


def extents(folder: Path, round: int, names: Sequence[str] = TABLES) -> dict[str, Extent]:
    """Measure all tables of a run, by file name, up to a round; rows of later rounds may be added meanwhile.

    They are on the disk when this returns, before a checkpoint says so: rows after it would be forgotten anyway.
    """
    return {name: _extent(folder / name, round) for name in names if (folder / name).exists()}


def _extent(path: Path, round: int) -> Extent:
    with writing(path), path.open("rb+") as file:
        os.fsync(file.fileno())
        data = file.read()
    end = data.rfind(b"\n") + 1
    while end:
        begin = data.rfind(b"\n", 0, end - 1) + 1
        key = data[begin:end].split(b",", 1)[0]
        if not key.isdigit() or int(key) <= round:  # the header, or the last row that counts
            break
        end = begin
    return Extent(end, hashlib.sha256(data[:end]).hexdigest())


def check_extents(folder: Path, expected: Mapping[str, Extent], witness: Path) -> None:
    """Check that the tables of a run still begin with what they held when another of its files was written."""
    for name, extent in expected.items():
        path = folder / name
        try:
            data = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise unreadable_error(path, error) from None
        if hashlib.sha256(data[: extent.size]).hexdigest() != extent.sha256:
            raise RunError(
                f"{path} is damaged (it does not hold what it held when {witness.name} was written); "
                "restore the file, or start a new run"
            )


class Row(dict[str, str]):
    """A row of a table; asking for a column that the table lacks is the table's fault, not a bug."""

    __slots__ = ("path",)

    def __init__(self, path: Path, values: Iterable[tuple[str, str]]) -> None:
        super().__init__(values)
        self.path = path

    def __missing__(self, column: str) -> str:
        raise damaged_error(self.path, 1, f"no column {column!r}")


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read all whole rows, as text."""
    header, rows = parse(path)
    return [Row(path, zip(header, values, strict=True)) for values in rows]


def parse(path: Path) -> tuple[list[str], list[list[str]]]:
    """Read header and whole rows, with numbers where numbers belong: callers may convert them without a check.

    One that is just being written, or was cut off by a crash, is not there yet.
    """
    text = _table_text(path) or ""
    table = csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))
    rows: list[list[str]] = []
    try:
        header = next(table, None)
        if header is None:
            return [], []
        if len(set(header)) < len(header):
            raise damaged_error(path, 1, "a column is there twice")
        for values in table:
            if len(values) != len(header):
                raise damaged_error(path, table.line_num, f"{len(values)} values for {len(header)} columns")
            for column, value in zip(header, values, strict=True):
                if not _belongs(value, column):
                    raise damaged_error(path, table.line_num, f"{column} {value[:20]!r} is not a valid number")
            rows.append(values)
    except csv.Error as error:
        raise damaged_error(path, table.line_num, str(error)) from None
    return header, rows


def _table_text(path: Path) -> str | None:
    """None where there is no such file; a header just being written, or cut off, is no damage."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise damaged_error(path, line, f"byte 0x{error.object[error.start]:02x} is no text") from None
    except OSError as error:
        raise unreadable_error(path, error) from None
    if not (re.match(rf"{KEYS}[,\n]", text) or f"{KEYS},".startswith(text)):
        raise damaged_error(path, 1, f"no header that begins with {KEYS!r}")
    return text


def unreadable_error(path: Path, error: OSError) -> RunError:
    return RunError(f"{path} cannot be read: {error.strerror or error}; fix this and retry")


def damaged_error(path: Path, line: int, what: str) -> RunError:
    return RunError(f"{path} is damaged (line {line}: {what}); restore the file, or start a new run")


def _belongs(value: str, column: str) -> bool:
    if column in WORDS:
        return True
    if column in WHOLE:
        return _is_whole(value)
    try:
        return isfinite(float(value)) or not column.endswith(("_bits", "_bytes"))  # accuracies may be unknown: nan
    except ValueError:
        return False


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


# Tables as arrays

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]

REPORTED_SHARE = 0.25  # the share of the rounds whose evaluations a reported accuracy is averaged over
REPORTED = "the evaluations in the last quarter of the rounds"  # what is written under a table


def reported_mean(rounds: Ints, values: Floats, has_row: Bools) -> Floats:
    """Average each agent's evaluations in the last quarter of its rounds: [E], [E, N], [E, N] -> [N].

    With E_i the evaluations of agent i and T_i its last round, mean of v_it over {t in E_i: t > 0.75 T_i} that are
    known; NaN if none is. A single evaluation varies from round to round.
    """
    last = np.where(has_row, rounds[:, None], 0).max(0, initial=0)  # [N]
    late = has_row & ~np.isnan(values) & (rounds[:, None] > (1 - REPORTED_SHARE) * last)
    count = late.sum(0)
    total = np.where(late, values, 0.0).sum(0)
    mean: Floats = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return mean


def nanmean(values: Floats) -> float:
    """Average the values that are known; NaN if none is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


@dataclass(frozen=True)
class Table:
    """A table with at most one row per round and agent, for R rounds and N agents."""

    path: Path
    rounds: Ints  # [R] ascending
    has_row: Bools  # [R, N] whether an agent has a row
    numbers: dict[str, Floats]  # [R, N] by column; NaN where an agent has no row
    words: dict[str, NDArray[np.str_]]  # likewise; empty where an agent has no row

    def __contains__(self, column: str) -> bool:
        return column in self.numbers

    def __getitem__(self, column: str) -> Floats:
        if not len(self.rounds):
            return np.empty(self.has_row.shape)
        if column not in self.numbers:
            raise damaged_error(self.path, 1, f"no column {column!r}")
        return self.numbers[column]

    def reported_mean(self, column: str) -> Floats:
        """Average each agent's last evaluations: see the function of this name. [N]"""
        return reported_mean(self.rounds, self[column], self.has_row)

    def last(self, column: str) -> Floats:
        """Take each agent's last row; NaN where it has none. [N]"""
        rows, (count, agents) = self[column], self.has_row.shape
        if not count:
            return np.full(agents, np.nan)
        place = count - 1 - self.has_row[::-1].argmax(0)  # [N]; a NaN where there is no row at all
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
                raise damaged_error(path, 1, f"no column {name!r}")
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
            text = np.array(column)[ours]
            words[name] = np.zeros(shape, text.dtype)
            words[name][at] = text
        else:
            numbers[name] = np.full(shape, np.nan)
            numbers[name][at] = np.array(column, np.float64)[ours]
    return Table(paths[0], rounds, there, numbers, words)
