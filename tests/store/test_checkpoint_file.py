"""What a checkpoint's file does when the disk, or who may read it, matters."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from peermask.errors import FullDiskError
from peermask.store.checkpoint import Checkpoint, Progress, load_checkpoint, save_checkpoint


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
