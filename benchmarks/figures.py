"""Figures of a benchmark as a JSON file, which `python -m benchmarks.compare` reads.

{"command": "python -m benchmarks.fleet", "date": "2026-11-16", "commit": "674ad58", "machine": "...",
 "figures": {"4 KB: exchange, p50": {"value": 4.4, "unit": "ms", "better": "less"}}}
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Literal, TypedDict

from peermask.errors import PeermaskError

Better = Literal["less", "more"]


class Figure(TypedDict):
    value: float
    unit: str
    better: Better


@dataclass
class Figures:
    """The figures of one run of a benchmark, with all that is needed to run it again."""

    command: str
    date: str
    commit: str
    machine: str
    figures: dict[str, Figure] = field(default_factory=dict)

    @classmethod
    def begin(cls, machine: str = "") -> Figures:
        """Figures of this process, none yet."""
        module = getattr(sys.modules["__main__"].__spec__, "name", Path(sys.argv[0]).stem)
        here = machine or f"{platform.machine()}, {os.cpu_count()} cores"
        return cls(
            " ".join(["python -m", module, *drop_option(sys.argv[1:], "--json")]),
            date.today().isoformat(),
            commit(),
            here,
        )

    @classmethod
    def read(cls, path: Path) -> Figures:
        """From a file; a file that is none is a user's mistake."""
        try:
            content = json.loads(path.read_text())
            return cls(**{name: content[name] for name in ("command", "date", "commit", "machine", "figures")})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PeermaskError(f"{path} is not a file of figures ({error}); write one with --json") from error

    @property
    def script(self) -> str:
        """The module that measured them: `benchmarks.fleet`."""
        return self.command.split()[2]

    def add(self, name: str, value: float, unit: str, better: Better = "less") -> None:
        self.figures[name] = {"value": float(f"{value:.4g}"), "unit": unit, "better": better}

    def write(self, path: Path | None) -> None:
        """To the file of `--json`, if there is one."""
        if path is not None:
            path.write_text(json.dumps(vars(self), indent=2, ensure_ascii=False) + "\n")


def add_option(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the figures there, for benchmarks.compare"
    )


def drop_option(words: Iterable[str], option: str) -> Iterable[str]:
    """The words of a command without an option and its value."""
    rest = iter(words)
    for word in rest:
        if word == option:
            next(rest, None)
        elif not word.startswith(f"{option}="):
            yield word


def commit() -> str:
    """The commit of this checkout, with `+` where files have changed since; empty without one."""
    here = Path(__file__).parent
    told = subprocess.run(
        ["git", "describe", "--always", "--exclude", "*", "--dirty=+"], cwd=here, capture_output=True, text=True
    )
    return told.stdout.strip()
