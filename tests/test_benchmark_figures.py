"""Figures of benchmarks: written, read and compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.compare import Figures, compare, drop_option

from peermask.errors import PeermaskError

BASELINES = sorted((Path(__file__).parents[1] / "benchmarks" / "baselines").glob("*.json"))


def figures(seconds: float, rate: float, script: str = "fleet") -> Figures:
    made = Figures(f"python -m benchmarks.{script}", "2026-11-18", "abc", "here")
    made.add("a round", seconds, "s")
    made.add("rounds", rate, "a second", better="more")
    return made


def test_worse_is_above_one_whichever_way_a_figure_goes() -> None:
    lines, worst = compare(figures(2.0, 10.0), figures(3.0, 8.0))
    assert worst == 1.5
    assert lines[-2].endswith("1.500 x")
    assert lines[-1].endswith("1.250 x")
    assert compare(figures(2.0, 10.0), figures(1.0, 20.0))[1] == 0.5


def test_figures_of_one_file_alone_are_named_and_those_of_other_scripts_refused() -> None:
    new = figures(2.0, 10.0)
    new.figures["memory"] = {"value": 1.0, "unit": "MB", "better": "less"}
    assert compare(figures(2.0, 10.0), new)[0][-1].split() == ["memory", "only", "in", "the", "new", "file"]
    with pytest.raises(PeermaskError, match=r"of benchmarks\.fleet and of benchmarks\.scale"):
        compare(figures(2.0, 10.0), figures(2.0, 10.0, "scale"))


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    figures(0.123456, 7.0).write(tmp_path / "a.json")
    assert Figures.read(tmp_path / "a.json") == figures(0.1235, 7.0)
    figures(1.0, 1.0).write(None)
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(PeermaskError, match=r"b\.json is not a file of figures"):
        Figures.read(tmp_path / "b.json")


def test_a_command_is_recorded_without_the_file_it_writes() -> None:
    words = ["--json", "a.json", "--turns", "5", "--json=b.json"]
    assert list(drop_option(words, "--json")) == ["--turns", "5"]


@pytest.mark.parametrize("path", BASELINES, ids=lambda path: path.stem)
def test_every_baseline_can_be_compared(path: Path) -> None:
    baseline = Figures.read(path)
    assert compare(baseline, baseline)[1] == 1.0
    assert (path.parents[1] / f"{baseline.script.removeprefix('benchmarks.')}.py").is_file()
