"""One process at a time on a run folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peermask.config.experiment import ExperimentConfig
from peermask.errors import RunError
from peermask.run.execution import Execution
from peermask.run.runner import resume_experiment, run_experiment
from peermask.store.folder import RunFolder, lock_folder

Small = Callable[..., ExperimentConfig]

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
    run_experiment(config, path, execution=Execution(should_stop=lambda: True))
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
