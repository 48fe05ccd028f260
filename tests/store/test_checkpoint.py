"""Files of checkpoints and masks: whole or refused, written beside the rounds, few of them."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from commands import Small, stop_after
from peermask.errors import FullDiskError, RunError
from peermask.run.execution import Execution
from peermask.run.runner import resume_experiment, run_experiment
from peermask.store.checkpoint import (
    SNAPSHOTS_KEPT,
    Background,
    Checkpoint,
    Progress,
    forget_masks_after,
    list_masks,
    load_checkpoint,
    load_masks,
    save_checkpoint,
    save_masks,
)
from peermask.store.folder import RunFolder


def made(round: int) -> Checkpoint:
    state = {"scores": torch.arange(6.0).view(2, 3), "mask": torch.tensor([[True, False, True]] * 2)}
    return Checkpoint(Progress(round, "config", "frozen"), state, {"mask": state["mask"].clone()}, {})


def test_it_comes_back_as_it_was_and_may_be_read_by_whom_other_files_may(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, made(3))
    other = tmp_path / "other"
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode
    loaded = load_checkpoint(path, ("config",), "frozen")
    assert loaded.progress == made(3).progress
    assert torch.equal(loaded.states["scores"], made(3).states["scores"])
    assert torch.equal(loaded.sent["mask"], made(3).sent["mask"])


def test_a_full_disk_is_one_line_and_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, made(1))

    def full(_tensors: object, path: Path, **_: object) -> None:
        path.write_bytes(b"half of it")
        raise safetensors.SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(
        FullDiskError, match=r"cannot write .*round-000002\.safetensors: .*No space left.*nothing.*is lost"
    ):
        save_checkpoint(tmp_path, made(2))
    assert [path.name for path in tmp_path.iterdir()] == ["round-000001.safetensors"]


def test_one_thing_at_a_time_and_in_order() -> None:
    done: list[int] = []
    gate = threading.Event()

    def first() -> None:
        gate.wait()
        done.append(1)

    with Background() as disk:
        disk.do(first)
        assert done == []  # the caller went on
        gate.set()
        disk.do(lambda: done.append(2))
        assert done[0] == 1  # a second waits for the first
    assert done == [1, 2]


def fail() -> None:
    raise RunError("cannot write x: No space left on device")


def test_a_failure_is_raised_at_the_next_thing_or_at_the_end() -> None:
    done: list[int] = []
    with Background() as disk:
        disk.do(fail)
        with pytest.raises(RunError, match="No space left"):
            disk.do(lambda: done.append(1))
        disk.do(lambda: done.append(2))
    assert done == [2]
    with pytest.raises(RunError, match="No space left"), Background() as disk:
        disk.do(fail)


def test_what_the_caller_raises_is_not_hidden_by_a_failure_behind_it() -> None:
    def caller() -> None:
        with Background() as disk:
            disk.do(fail)
            raise KeyError

    with pytest.raises(KeyError):
        caller()


def test_masks_are_kept_of_few_rounds_spread_over_the_run(tmp_path: Path) -> None:
    mask = np.array([[True, False, True]])
    for number in range(1, 3 * SNAPSHOTS_KEPT):
        save_masks(tmp_path, number, mask)
    rounds = list(list_masks(tmp_path))
    assert len(rounds) == SNAPSHOTS_KEPT
    assert (rounds[0], rounds[-1]) == (1, 3 * SNAPSHOTS_KEPT - 1)
    assert load_masks(list_masks(tmp_path)[1], 3).tolist() == mask.tolist()
    with np.load(list_masks(tmp_path)[1]) as file:  # as numpy itself would have written it
        assert file["masks"].tolist() == np.packbits(mask, axis=1).tolist()
    forget_masks_after(tmp_path, 1)
    assert list(list_masks(tmp_path)) == [1]


def test_damaged_masks_are_one_line(tmp_path: Path) -> None:
    path = save_masks(tmp_path, 1, np.ones((2, 9), bool))
    with pytest.raises(RunError, match="not of 100 weights"):
        load_masks(path, 100)
    path.write_bytes(b"PK nonsense")
    with pytest.raises(RunError, match="damaged"):
        load_masks(path, 9)


def test_a_run_keeps_the_masks_of_its_models_at_checkpoints(small: Small, tmp_path: Path) -> None:
    result = run_experiment(small(), tmp_path / "a", execution=Execution("cpu"))
    held = list_masks(RunFolder(tmp_path / "a").masks)
    assert list(held) == [2, 4]
    masks = load_masks(held[4], result.manifest["weights"])
    assert masks.mean(1).tolist() == pytest.approx([agent.density for agent in result.agents], abs=1e-6)
    run_experiment(small(checkpoint={"every": 2, "masks": False}), tmp_path / "b", execution=Execution("cpu"))
    assert not RunFolder(tmp_path / "b").masks.exists()


def test_evaluations_say_when_they_were_and_a_resumed_run_goes_on_counting(small: Small, tmp_path: Path) -> None:
    run_experiment(small(), tmp_path / "a", execution=stop_after(2))
    result = resume_experiment(tmp_path / "a", Execution("cpu"))
    seconds = [row["seconds"] for row in result.metrics() if row["agent"] == 0]
    assert 0 < seconds[0] < seconds[1]
