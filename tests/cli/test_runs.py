"""`peermask runs`: what it lists, how it compares, and what it deletes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

import peermask
from commands import Call, Refused
from peermask.errors import RunError
from peermask.files import hold_lock


@pytest.fixture
def two(tmp_path: Path, small: Callable[..., peermask.ExperimentConfig]) -> Path:
    """A run of two rounds, and a comparison that another seed began."""
    peermask.run_experiment(small(rounds=2), tmp_path / "runs" / "alone")
    peermask.run_experiment(small(rounds=2, seed=3, compare=[{"name": "ind-mask"}]), tmp_path / "runs" / "both")
    return tmp_path / "runs"


def test_list_and_compare(two: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(two.parent)
    code, out, _ = call("runs")
    heading, *rows = out.splitlines()
    assert (code, heading.split()[-1]) == (0, "run")
    assert sorted(row.split()[-1] for row in rows) == ["runs/alone", "runs/both/ind-mask", "runs/both/mce-pl"]
    assert all("finished" in row and "accuracy" in row and " %" in row for row in rows)
    code, out, _ = call("runs", "compare", two / "alone", two / "both" / "mce-pl")
    assert code == 0
    assert [line.split() for line in out.splitlines() if line.startswith("seed")] == [["seed", "0", "3"]]
    assert "rounds" not in out  # it is the same
    assert "ind-mask" in call("runs", "compare", two / "both")[1]


def test_a_run_without_a_result_and_a_damaged_one(two: Path, call: Call) -> None:
    (two / "alone" / "result.json").unlink()
    damaged = two / "both" / "mce-pl" / "manifest.json"
    damaged.write_text(damaged.read_text().replace('"seed": 3', '"seed": 4'))
    _, out, _ = call("runs", "list", two)
    status = {row.split()[-1]: row for row in out.splitlines()}
    assert "unfinished" in status[str(two / "alone")]
    assert "damaged" in status[str(two / "both" / "mce-pl")]


def test_delete_asks_and_leaves_what_is_not_its_own(two: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, out, _ = call("runs", "delete", two / "both")
    assert (code, out.splitlines()[-1].rpartition("]: ")[2]) == (1, "nothing was deleted")
    assert (two / "both" / "mce-pl" / "config.toml").is_file()
    (two / "alone" / "notes.txt").write_text("mine")
    code, out, _ = call("runs", "delete", "--yes", two / "both", two / "alone")
    assert code == 0
    assert "deleted 3 folders, and what runs wrote in 1 folder\n" in out
    assert f"left: {two / 'alone' / 'notes.txt'}, which no run wrote" in out
    assert [path.relative_to(two).as_posix() for path in sorted(two.rglob("*"))] == ["alone", "alone/notes.txt"]


def test_a_diverged_run_is_listed_as_such_and_deleted_as_a_whole(
    tmp_path: Path, small: Callable[..., peermask.ExperimentConfig], call: Call
) -> None:
    with pytest.raises(peermask.PeermaskError, match=r"smaller algorithm\.lr"):
        peermask.run_experiment(small(rounds=3, algorithm={"name": "dsgd", "lr": 1e20}), tmp_path / "run")
    assert "  diverged  " in call("runs", "list", tmp_path)[1]
    assert "deleted 1 folder" in call("runs", "delete", "--yes", tmp_path / "run")[1]
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_named_twice_is_deleted_once(two: Path, call: Call) -> None:
    assert "deleted 1 folder\n" in call("runs", "delete", "-y", two / "alone", two / "both" / ".." / "alone")[1]


def test_nothing_is_deleted_if_one_of_them_is_no_run(two: Path, call: Call) -> None:
    code, _, err = call("runs", "delete", "--yes", two / "alone", two)
    assert (code, err) == (2, f"peermask: {two} is not a run folder: it has no config.toml; it has runs: alone\n")
    assert (two / "alone" / "config.toml").is_file()


def test_a_run_in_progress_and_a_link_are_refused(two: Path, call: Call) -> None:
    with hold_lock(two / "alone" / ".lock", RunError("busy")):
        code, _, err = call("runs", "delete", "--yes", two / "alone")
    assert code == 2
    assert "is being run by another process; wait for it" in err
    (two / "link").symlink_to(two / "alone")
    code, _, err = call("runs", "delete", "--yes", two / "link")
    assert code == 2
    assert "is a link; delete the folder it leads to" in err
    assert (two / "alone" / "result.json").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "nowhere"], "there is no folder nowhere; name the one that has your runs"),
        (["list", "."], ". has no runs; start one with"),
        (["compare", "nowhere"], "there is no folder nowhere; check the path"),
    ],
)
def test_mistakes(
    words: list[str], message: str, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused("runs", *words)


def test_one_run_cannot_be_compared(two: Path, call: Call) -> None:
    assert "is one run; name at least two to compare" in call("runs", "compare", two / "alone")[2]
