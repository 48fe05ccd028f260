"""The outcomes of all runs in one table: a line of JSON for each, by key.

A run that ends leaves its own small file, so that several processes can share a folder; `fold` moves those files
into the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from peermask.errors import RunError
from peermask.files import claimed, read_json, write_atomically, writing


def read_table(path: Path) -> Mapping[str, dict[str, Any]]:
    """key -> outcome; empty where there is no table. Read again only after it changed."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return {}
    return _read(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=2)
def _read(path: Path, changed: int, size: int) -> Mapping[str, dict[str, Any]]:  # noqa: ARG001
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}; fix this and retry") from None
    return dict(_line(line, f"{path}, line {number}") for number, line in enumerate(lines, 1))


def _line(line: str, where: str) -> tuple[str, dict[str, Any]]:
    try:
        outcome = json.loads(line)
        return str(outcome.pop("key")), outcome
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise RunError(f"{where}: damaged ({error}); delete the line to run it again") from None


def fold(files: Path, path: Path) -> None:
    """Move the finished outcomes in a folder into the table; left to another process that is at it."""
    lock = files / ".fold.lock"
    with claimed(lock) as ours:
        finished = sorted(files.glob("*.json"))
        if ours and finished:
            table = dict(read_table(path))
            for file in finished:
                table[file.stem] = read_json(file, "delete it to run it again")
            lines = [json.dumps({"key": key, **table[key]}) + "\n" for key in sorted(table)]
            write_atomically(path, "".join(lines).encode())
            with writing(files):  # a reader that no longer finds a file sees that the table has changed
                for file in finished:
                    file.unlink()
    with suppress(OSError):
        lock.unlink()
