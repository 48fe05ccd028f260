"""Runs whose files are damaged: one line that names the file, and never a false result."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from commands import Small, stop_after
from peermask.errors import RunError
from peermask.exports.write import export
from peermask.files import read_json, write_json
from peermask.reports.page import write_report
from peermask.run.result import RunResult
from peermask.run.runner import resume_experiment, run_experiment
from peermask.store.checkpoint import list_checkpoints, list_masks, load_masks
from peermask.store.folder import RunFolder


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
    run_experiment(config, tmp_path / "cut", execution=stop_after(3))
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


@pytest.fixture
def finished(small: Small, tmp_path: Path) -> RunFolder:
    run_experiment(small(), tmp_path / "run")
    return RunFolder(tmp_path / "run")


def flip(path: Path, place: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def digit_changed(text: str, place: int) -> str:
    """One digit of a table for another: still a number, in a row that is still whole."""
    at = next(k for k in range(len(text) - place, 0, -1) if text[k].isdigit() and text[k - 1].isdigit())
    return text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_flipped_bit_in_a_checkpoint_takes_the_one_before(
    finished: RunFolder, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    whole = RunResult.open(finished.path).hash
    finished.result.unlink()
    before, last = list_checkpoints(finished.checkpoints)
    flip(last, int(share * last.stat().st_size))
    resumed = resume_experiment(finished.path)
    assert resumed.hash == whole
    assert caplog.messages == [f"checkpoint {last} is damaged (its digest does not match); resuming from {before}"]
    assert resume_experiment(finished.path).hash == whole
    assert len(caplog.messages) == 1


def test_an_export_takes_the_checkpoint_before_a_damaged_one_and_says_so(
    finished: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, last = list_checkpoints(finished.checkpoints)
    flip(last, last.stat().st_size - 40)
    export(RunResult.open(finished.path), 1, tmp_path / "a.ticket")
    assert caplog.messages == [
        f"checkpoint {last} is damaged (its digest does not match); resuming from {before}",
        "the model is of round 2, the last checkpoint; the run is at 4",
    ]
    flip(before, before.stat().st_size - 40)
    with pytest.raises(RunError, match=r"round-000004\.safetensors is damaged"):
        export(RunResult.open(finished.path), 1, tmp_path / "b.ticket")
    assert not (tmp_path / "b.ticket").exists()


def test_what_says_how_far_a_run_came_is_covered_too(finished: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    last = list_checkpoints(finished.checkpoints)[-1]
    data = last.read_bytes()
    changed = data.replace(rb"\"waited\": ", rb"\"waited\":1", 1)
    assert changed != data
    last.write_bytes(changed)
    finished.result.unlink()
    resume_experiment(finished.path)
    assert "its digest does not match" in caplog.messages[0]


def test_a_checkpoint_that_cannot_be_read_is_not_called_damaged(finished: RunFolder) -> None:
    finished.result.unlink()
    last = list_checkpoints(finished.checkpoints)[-1]
    if os.geteuid():
        last.chmod(0)
    else:  # root reads everything but a folder
        last.unlink()
        last.mkdir()
    with pytest.raises(RunError, match=r"checkpoint .*4\.safetensors cannot be read: .*; fix this and retry"):
        resume_experiment(finished.path)
    assert last.exists()


UNLIKE = r"damaged \(it does not hold what it held when {} was written\); restore the file"
UNSEALED = r"damaged \(its digest does not match\)"


@pytest.mark.parametrize(
    ("name", "edit", "said", "is_unfinished"),
    [
        ("metrics.csv", lambda text: digit_changed(text, 20), UNLIKE, True),
        ("traffic.csv", lambda text: digit_changed(text, 20), UNLIKE, True),
        ("metrics.csv", lambda _: "", UNLIKE, True),
        ("metrics.csv", lambda _: "round,agent,train_loss\n", UNLIKE, True),
        ("confusion.csv", lambda text: digit_changed(text, 40), UNLIKE, False),  # the last evaluation writes it again
        ("result.json", lambda text: digit_changed(text, len(text) // 2), UNSEALED, False),
        ("manifest.json", lambda text: digit_changed(text, len(text) // 2), UNSEALED, True),
        ("config.toml", lambda text: text.replace("batch_size = 8", "batch_size = 9"), "changed since manifest", True),
    ],
    ids=["digit", "digit", "empty", "no rows", "digit", "number", "number", "batch size"],
)
def test_an_edit_is_noticed(
    finished: RunFolder, name: str, edit: Callable[[str], str], said: str, is_unfinished: bool
) -> None:
    path = finished.path / name
    whole = path.read_text()
    path.write_text(edit(whole))
    assert path.read_text() != whole
    for witness in ("result", "round-000004") if is_unfinished else ("result",):
        for read in (RunResult.open, resume_experiment, lambda folder: write_report([folder])):
            how = said.format(witness + r"\.(json|safetensors)")
            with pytest.raises(RunError, match=rf"{name} ((is|was) {how}|lacks agent 0 in round 2)"):
                read(finished.path)
        if is_unfinished:
            finished.result.unlink(missing_ok=True)
    path.write_text(whole)
    assert resume_experiment(finished.path).status == "finished"


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ("seed = 0", "seed = 1", "seed"),
        ("rounds = 4", "rounds = 3", "rounds"),
        ("rounds = 4", 'rounds = "four"', "rounds"),
        ("lr = 1.0", "lr = 0.5", "algorithm"),
    ],
)
def test_an_edit_of_a_comparison_is_noticed(tmp_path: Path, small: Small, before: str, after: str, key: str) -> None:
    root = run_experiment(small(algorithm={"name": "mce-pl", "lr": 1.0}, compare=["ind-mask"]), tmp_path / "run").root
    assert root is not None
    path = root / "compare.toml"
    whole = path.read_text()
    path.write_text(whole.replace(before, after))
    assert path.read_text() != whole
    for read in (RunResult.open, lambda folder: write_report([folder])):
        with pytest.raises(RunError, match=rf"compare\.toml was changed: {key} is not as in mce-pl/config\.toml"):
            read(root)
    path.write_text(whole.replace("rounds = 4", "rounds = 6"))  # its runs are extended one after another
    assert RunResult.open(root).round == 4


def test_any_flipped_byte_of_kept_masks_is_refused_or_changes_nothing(finished: RunFolder) -> None:
    """The archive's own checksum covers all that is read from it."""
    weights = RunResult.open(finished.path).manifest["weights"]
    path = list_masks(finished.masks)[4]
    whole, data = load_masks(path, weights), path.read_bytes()
    for place in range(0, len(data), 7):
        flip(path, place, place % 8)
        with suppress(RunError):
            assert (load_masks(path, weights) == whole).all()
        path.write_bytes(data)


def test_rounds_of_seven_digits_come_after_those_of_six(tmp_path: Path) -> None:
    for name in ("round-999950.safetensors", "round-1000000.safetensors"):
        (tmp_path / name).touch()
    assert [path.stem for path in list_checkpoints(tmp_path)] == ["round-999950", "round-1000000"]
