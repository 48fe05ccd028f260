"""`peermask theory` from end to end, at a size a test can afford."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from peermask.cli.paper import theory
from peermask.errors import ConfigError, RunError
from peermask.paper.theory import report
from peermask.paper.theory.report import markdown, print_tables, theory_report
from peermask.paper.theory.study import FULL, QUICK, Scale, Study, run_study

TINY = Scale((1, 2, 6), 3, steps=5, width=16, widths=(4, 8, 16), draws=3, pairs=1, random_inputs=20)


@pytest.fixture(scope="module")
def study() -> Study:
    return run_study(TINY, seed=0, said=lambda _: None)


def test_the_same_seed_gives_the_same_study(study: Study) -> None:
    # As text: a rate that was not found is NaN, which equals nothing, and Python 3.13 compares fields one by one.
    assert repr(run_study(TINY, seed=0, said=lambda _: None)) == repr(study)


def test_the_study_measures_the_theorem(study: Study) -> None:
    assert study.pair.untouched
    for seen in (*study.pair.seen, *(row.seen for row in study.correlated)):
        assert seen.upper_holds
        assert seen.lower_holds
    for seen in study.pair.seen:
        assert (seen.eps1, seen.eps2) <= study.pair.certified
    assert all(low <= high + 1e-12 for low, high in zip(study.pair.climbed, study.pair.certified, strict=True))
    assert all(trial.seen.lower_holds for trial in study.trials)
    assert all(max(trial.seen.eps1, trial.seen.eps2) <= trial.worst + 1e-12 for trial in study.trials)
    assert [row.shared for row in study.correlated] == [0, 1, 2, 3]


def test_tables_say_where_the_printed_bound_stops(study: Study) -> None:
    buffer = io.StringIO()
    print_tables(study, Console(file=buffer, width=160))
    printed = buffer.getvalue()
    for text in ("ε1", "α_l", "(25)", "(26) valid form", "only where", "Jaccard", "Ĉ", "counts the draws"):
        assert text in " ".join(printed.split()), text
    assert "follows from the triangle inequality only where ε1 + ε2 ≤ α_l" in markdown(study)


def test_the_command_chooses_a_scale(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, Scale]] = []

    def made(out: Path, scale: Scale, *_: object) -> Study:
        asked.append((out, scale))
        return study

    monkeypatch.setattr(report, "theory_report", made)
    app = typer.Typer()
    app.command()(theory)
    for options in ([], ["--quick"]):
        result = CliRunner().invoke(app, [*options, "--out", str(tmp_path)])
        assert result.exit_code == 0, result.output
        assert result.output.endswith(f"report and figures in {tmp_path}\n")
    assert asked == [(tmp_path, FULL), (tmp_path, QUICK)]


def test_a_report_has_figures(tmp_path: Path) -> None:
    theory_report(tmp_path / "made", TINY, seed=0, said=lambda _: None)
    names = {path.name for path in (tmp_path / "made").iterdir()}
    kinds = {f"{name}.{kind}" for name in ("width", "success", "theorem", "overlap") for kind in ("png", "svg")}
    assert names == kinds | {"theory.md"}
    text = (tmp_path / "made" / "theory.md").read_text(encoding="utf-8")
    assert all(f"({name}.png)" in text for name in ("width", "success", "theorem", "overlap"))
    assert (tmp_path / "made" / "width.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_cannot_be_made_is_found_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot make the folder .*; give another --out"):
        theory_report(tmp_path / "file" / "below", QUICK, seed=0, said=lambda _: None)


def test_missing_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'peermask\[report\]'"):
        theory_report(tmp_path, QUICK, seed=0, said=lambda _: None)
