"""Two files of figures, side by side: is this machine, or this commit, slower?

    python -m benchmarks.compare benchmarks/baselines/fleet.json new.json [--within 1.03]

NEW is written by the same benchmark with `--json new.json`. A ratio above 1 is worse, whichever way the figure goes.
Figures of different machines can be compared only where they are ratios themselves. With `--within` the exit status is
1 if a figure is worse by more than that factor. A file of figures is

    {"command": "python -m benchmarks.fleet", "date": "2026-11-16", "commit": "674ad58", "machine": "...",
     "figures": {"4 KB: exchange, p50": {"value": 4.4, "unit": "ms", "better": "less"}}}
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
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


def add_option(parser: argparse.ArgumentParser) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("baseline", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--within", type=float, help="fail if a figure is worse by more than this factor, such as 1.03")
    options = parser.parse_args()
    try:
        lines, worst = compare(Figures.read(options.baseline), Figures.read(options.new))
    except PeermaskError as error:
        parser.error(str(error))
    print(*lines, sep="\n")
    if options.within is not None and worst > options.within:
        sys.exit(f"worse by a factor of {worst:.3f}, more than {options.within:g}")


def compare(baseline: Figures, new: Figures) -> tuple[list[str], float]:
    """Lines of a table, and the largest ratio."""
    if baseline.script != new.script:
        raise PeermaskError(f"these are figures of {baseline.script} and of {new.script}; compare those of one script")
    lines = [f"baseline  {about(baseline)}", f"new       {about(new)}"]
    if baseline.machine != new.machine:
        lines.append("The machines differ: compare ratios only.")
    if baseline.command != new.command:
        lines.append("The commands differ: run the baseline's, with --json.")
    worst = 0.0
    for name in [*baseline.figures, *(name for name in new.figures if name not in baseline.figures)]:
        before, after = baseline.figures.get(name), new.figures.get(name)
        if before is None or after is None:
            lines.append(f"{name:48s} only in the {'baseline' if after is None else 'new'} file")
            continue
        factor = worse_by(before, after)
        worst = max(worst, factor)
        lines.append(f"{name:48s}{before['value']:10.4g}{after['value']:10.4g} {after['unit']:10s}{factor:7.3f} x")
    return lines, worst


def worse_by(before: Figure, after: Figure) -> float:
    """How many times worse; below 1: better."""
    if before["unit"] != after["unit"]:
        raise PeermaskError(f"one file has {before['unit']} and the other {after['unit']}; measure the baseline again")
    larger, smaller = (after, before) if before["better"] == "less" else (before, after)
    return larger["value"] / smaller["value"] if smaller["value"] else float("inf")


def about(figures: Figures) -> str:
    return f"{figures.date}, commit {figures.commit}, {figures.machine}: {figures.command}"


if __name__ == "__main__":
    main()
