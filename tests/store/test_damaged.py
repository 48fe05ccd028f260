"""Runs whose files are damaged: one line that names the file, and never a false result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peermask.config.experiment import ExperimentConfig
from peermask.errors import RunError
from peermask.files import read_json, write_json
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.runner import resume_experiment, run_experiment
from peermask.store.folder import RunFolder

Small = Callable[..., ExperimentConfig]


@pytest.fixture
def ended(small: Small, tmp_path: Path) -> RunFolder:
    """A run that was killed between its last checkpoint and its result."""
    run_experiment(small(), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.result.unlink()
    return folder


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"agents": None}, "agents: "),
        ({"agents": []}, "agents: "),
        ({"agents": [{"agent": 0}]}, r"agents\.0\.labels: Field required"),
        ({"graph": {"links": [[0, 9]]}}, "not of agents 0 to 3"),
        ({"weights": "many"}, "weights: "),
        ({"dataset": "digits"}, "dataset: "),
    ],
)
def test_a_manifest_that_lacks_something_is_one_line(ended: RunFolder, change: dict[str, Any], what: str) -> None:
    write_json(ended.manifest, read_json(ended.manifest) | change)
    for read in (RunResult.open, resume_experiment):
        with pytest.raises(RunError, match=rf"manifest\.json is damaged \(.*{what}.*\); restore the file"):
            read(ended.path)


@pytest.mark.parametrize("content", ["{}", "[1]", "nonsense", '{"status": "finished", "round": "x"}'])
def test_a_result_that_is_none_is_not_shown(ended: RunFolder, content: str) -> None:
    ended.result.write_text(content)
    for read in (RunResult.open, resume_experiment):
        with pytest.raises(RunError, match=r"result\.json"):
            read(ended.path)


def drop(text: str, word: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(word))


@pytest.mark.parametrize(
    ("table", "damage", "what"),
    [
        ("metrics.csv", lambda _: "garbage", r"metrics\.csv is damaged \(line 1: no header"),
        ("metrics.csv", lambda _: "", r"metrics\.csv lacks agent 0 in round 2; restore the file"),
        ("metrics.csv", lambda text: drop(text, "2,1,"), r"metrics\.csv lacks agent 1 in round 2"),
        ("metrics.csv", lambda text: drop(text, "4,"), r"metrics\.csv lacks agent 0 in round 4"),
        ("metrics.csv", lambda text: text.replace("test_accuracy,", "", 1), r"line 2: 19 values for 18 columns"),
        ("metrics.csv", lambda text: text + text.splitlines()[1].replace("2,0", "2,7", 1) + "\n", "rows of agent 7"),
        ("traffic.csv", lambda text: drop(text, "3,"), r"traffic\.csv lacks rows: \d+ bytes sent by round 4"),
        ("traffic.csv", lambda text: drop(text, "3,2"), r"traffic\.csv lacks agent 2 in round 3"),
        ("traffic.csv", lambda text: text.replace("coded_bytes", "x_bytes"), r"no column 'coded_bytes'"),
    ],
)
def test_a_run_does_not_go_on_from_tables_that_lack_rows(
    ended: RunFolder, table: str, damage: Callable[[str], str], what: str
) -> None:
    path = ended.path / table
    path.write_text(damage(path.read_text()))
    with pytest.raises(RunError, match=what):
        resume_experiment(ended.path)
    assert not ended.result.exists()


def test_a_run_that_has_not_evaluated_yet_goes_on(small: Small, tmp_path: Path) -> None:
    config = small(evaluation={"every": 4})
    whole = run_experiment(config, tmp_path / "whole")
    stop = iter([False, False, True])
    run_experiment(config, tmp_path / "cut", execution=Execution(should_stop=lambda: next(stop)))
    assert not RunFolder(tmp_path / "cut").metrics.exists()
    RunFolder(tmp_path / "cut").metrics.touch()
    assert RunResult.open(tmp_path / "cut").round == 0
    assert resume_experiment(tmp_path / "cut").hash == whole.hash


def test_a_result_is_json_that_everybody_reads(ended: RunFolder) -> None:
    resume_experiment(ended.path)
    assert "NaN" not in ended.result.read_text()


def test_the_checkpoint_before_a_damaged_one_is_taken_and_said(
    ended: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    whole = ended.traffic.read_text()
    before, last = sorted(ended.checkpoints.iterdir())
    data = last.read_bytes()
    last.write_bytes(data[: len(data) // 2])
    resumed = resume_experiment(ended.path)
    (said,) = caplog.messages
    assert said.startswith(f"checkpoint {last} is damaged (")
    assert said.endswith(f"; resuming from {before}")
    assert len(resumed.local_models()) == 4  # from the last checkpoint, which was written again
    assert ended.traffic.read_text() == whole
    assert resumed.status == "finished"


def test_what_a_killed_process_had_half_written_is_removed(ended: RunFolder) -> None:
    rests = [
        ended.checkpoints / ".round-000004.safetensors.123.part",
        ended.checkpoints / ".tmpR6NVKS",  # safetensors writes to a file of its own first
        ended.masks / ".round-000004.npz.123.part",
        ended.path / ".result.json.123.part",
    ]
    other = ended.path / ".report.html.123.part"  # of a report that may be under way
    for path in (*rests, other):
        path.touch()
    resume_experiment(ended.path)
    assert not any(path.exists() for path in rests)
    assert other.exists()
