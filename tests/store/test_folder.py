"""Writing a run folder: whole files or none, tables that survive a cut."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commands import Small, stop_after
from peermask.config.experiment import ExperimentConfig
from peermask.errors import RunError
from peermask.files import read_json, write_atomically
from peermask.run.runner import resume_experiment, run_experiment
from peermask.store.folder import RunFolder, lock_folder
from peermask.store.table import append_rows, extents, forget_after, read_rows


def test_a_folder_with_anything_in_it_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match=r"exists and is not a run folder; give another --out"):
        RunFolder(tmp_path).create()
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("name", ["config.toml", "compare.toml"])
def test_a_run_that_is_there_can_be_gone_on_with(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(RunError, match=r"exists; resume it with `peermask run --resume"):
        RunFolder(tmp_path).create()


def test_what_a_run_killed_at_once_left_behind_is_taken_over(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    write_atomically(folder.manifest, b"{}")
    folder.create()
    write_atomically(folder.config, b"rounds = 1")
    with pytest.raises(RunError, match="--resume"):
        folder.create()


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot write .*result\.json: No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_later_rounds_and_a_cut_off_row_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    append_rows(path, ("round", "agent"), [(1, 0), (2, 0)])
    append_rows(path, ("round", "agent"), [(3, 0)])
    with path.open("a") as file:
        file.write("4,")
    forget_after(path, 2)
    assert read_rows(path) == [{"round": "1", "agent": "0"}, {"round": "2", "agent": "0"}]
    append_rows(path, ("round", "agent"), [(3, 1)])
    assert len(read_rows(path)) == 3


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    append_rows(path, ("round", "agent", "loss"), [(1, 0, 0.5)])
    with pytest.raises(RunError, match=r"line 1: not the columns that this version writes"):
        append_rows(path, ("round", "agent"), [(3, 0)])


def test_a_row_that_is_being_written_is_not_read_yet(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    append_rows(path, ("round", "agent", "loss"), [(1, 0, 0.5)])
    with path.open("a") as file:
        file.write("1,1,0.2")  # of 0.25
    assert read_rows(path) == [{"round": "1", "agent": "0", "loss": "0.5"}]


def test_a_table_that_lost_all_it_had_gets_its_header_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("round,ag")  # cut off by a crash
    forget_after(path, 0)
    append_rows(path, ("round", "agent"), [(1, 0)])
    assert read_rows(path) == [{"round": "1", "agent": "0"}]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"garbage", r"line 1: no header that begins with 'round,agent'"),
        (b"garbage\n1,0\n", r"line 1: no header"),
        (b"round,agent\n\0\0\0\n", r"line 2: "),
        (b"round,agent\n1,0\nx,0\n", r"line 3: round 'x' is not a valid number"),
        (b"round,agent\n1,0\n\xff\xfe,0\n", r"line 3: byte 0xff is no text"),
    ],
)
def test_a_table_that_is_none_is_one_line(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "traffic.csv"
    path.write_bytes(content)
    with pytest.raises(RunError, match=rf"traffic\.csv is damaged \({what}.*\); restore the file, or start a new run"):
        forget_after(path, 3)
    assert path.read_bytes() == content
    with pytest.raises(RunError, match=rf"traffic\.csv is damaged \({what}"):
        read_rows(path)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("1,0,0.5", "3 values for 4 columns"),
        ("1,0,0.5,9,9", "5 values for 4 columns"),
        ("1,0,word,9", "density 'word' is not a valid number"),
        ("1,-1,0.5,9", "agent '-1' is not a valid number"),
        ("1,0,0.5,nan", "sent_bytes 'nan' is not a valid number"),
        ("9999999999,0,0.5,9", "round '9999999999' is not a valid number"),
    ],
)
def test_a_damaged_row_is_named(tmp_path: Path, row: str, what: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(f"round,agent,density,sent_bytes\n1,0,nan,9\n{row}\n")
    with pytest.raises(RunError, match=rf"metrics\.csv is damaged \(line 3: {what}\); restore the file"):
        read_rows(path)


def test_rows_are_on_the_disk_before_a_digest_of_their_table_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [tmp_path / "metrics.csv", tmp_path / "traffic.csv"]
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    for path in tables:
        append_rows(path, ("round", "agent"), [(1, 0)])
    assert not synced
    assert list(extents(tmp_path, 1)) == ["metrics.csv", "traffic.csv"]
    assert synced == [path.stat().st_ino for path in tables]


def test_a_column_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    append_rows(path, ("round", "agent"), [(1, 0)])
    (row,) = read_rows(path)
    assert row.get("density") is None
    with pytest.raises(RunError, match=r"metrics\.csv is damaged \(line 1: no column 'density'\)"):
        row["density"]


def test_a_table_that_is_not_there_or_empty_has_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "metrics.csv") == []
    (tmp_path / "metrics.csv").touch()
    assert read_rows(tmp_path / "metrics.csv") == []


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").mkdir()
    for read in (read_rows, read_json):
        with pytest.raises(RunError, match=r"metrics\.csv cannot be read: Is a directory; fix this and retry"):
            read(tmp_path / "metrics.csv")


HOLD = """
import sys
from pathlib import Path
from peermask.store.folder import RunFolder
from peermask.store.folder import lock_folder
with lock_folder(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Another process that has a folder."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def stopped_run(config: ExperimentConfig, path: Path) -> RunFolder:
    run_experiment(config, path, execution=stop_after(1))
    return RunFolder(path)


def test_a_run_that_another_process_has_is_left_alone_until_that_is_gone(
    small: Small, tmp_path: Path, hold: Callable[[Path], subprocess.Popen[str]]
) -> None:
    folder = stopped_run(small(), tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    other = hold(folder.path)
    with pytest.raises(RunError, match=r"run is being run by another process; wait for it, or stop it first"):
        resume_experiment(folder.path)
    assert {path: path.read_bytes() for path in before} == before
    other.kill()
    other.wait()
    assert resume_experiment(folder.path).status == "finished"
    assert not folder.lock.exists()


def test_an_arm_that_another_process_has_stops_a_comparison(
    small: Small, tmp_path: Path, hold: Callable[[Path], subprocess.Popen[str]]
) -> None:
    stopped_run(small(compare=["ind-mask"]), tmp_path / "both")
    hold(tmp_path / "both" / "mce-pl")
    with pytest.raises(RunError, match=r"mce-pl is being run by another process"):
        resume_experiment(tmp_path / "both")


def test_a_new_run_is_not_begun_where_another_begins(
    small: Small, tmp_path: Path, hold: Callable[[Path], subprocess.Popen[str]]
) -> None:
    for name, config in (("one", small()), ("both", small(compare=["ind-mask"]))):
        hold(tmp_path / name)
        with pytest.raises(RunError, match=rf"{name} is being run by another process"):
            run_experiment(config, tmp_path / name)


def test_a_lock_that_a_killed_process_left_takes_no_folder(small: Small, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with lock_folder(folder):
        assert folder.lock.exists()
    folder.lock.touch()
    assert not folder.is_taken
    assert run_experiment(small(), folder.path).status == "finished"


def test_a_finished_run_is_read_whoever_has_it(
    small: Small, tmp_path: Path, hold: Callable[[Path], subprocess.Popen[str]]
) -> None:
    result = run_experiment(small(), tmp_path / "run")
    hold(tmp_path / "run")
    assert resume_experiment(tmp_path / "run").hash == result.hash


def test_a_folder_of_something_else_gets_no_lock(small: Small, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match="is not a run folder"):
        run_experiment(small(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
