"""Two files of figures, side by side: is this machine, or this commit, slower?

    python -m benchmarks.compare benchmarks/baselines/fleet.json new.json [--within 1.03]

NEW is written by the same benchmark with `--json new.json`. A ratio above 1 is worse, whichever way the figure goes.
Figures of different machines can be compared only where they are ratios themselves. With `--within` the exit status is
1 if a figure is worse by more than that factor.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.figures import Figure, Figures
from peermask.errors import PeermaskError


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
