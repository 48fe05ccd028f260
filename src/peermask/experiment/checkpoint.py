"""Checkpoints: the whole state of a run after a round, written atomically and read without trust."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from peermask.errors import RunError
from peermask.files import replacing, writing

KEPT = 2  # the one before is there should the last be damaged


class DamagedError(RunError):
    """A checkpoint that is none; one of another config is whole, and no reason to take the one before."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands, beside the agents' states."""

    round: int
    config_hash: str
    frozen_checksum: str
    best: float = float("-inf")  # highest mean validation accuracy so far
    waited: int = 0  # evaluations since then
    seconds: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    progress: Progress
    states: dict[str, Tensor]  # the agents' states, one row an agent
    sent: dict[str, Tensor]  # the last messages, which receivers hold and deltas refer to
    losses: dict[str, Tensor]  # `recent`: of the rounds since the last evaluation

    def tensors(self) -> dict[str, Tensor]:
        groups = {"state": self.states, "sent": self.sent, "losses": self.losses}
        return {f"{group}/{name}": t.contiguous() for group, part in groups.items() for name, t in part.items()}


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    path = folder / f"round-{checkpoint.progress.round:06d}.safetensors"
    meta = {"progress": json.dumps(asdict(checkpoint.progress))}
    with writing(path), replacing(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            # Not `save`, which makes one long string of it first, while no other thread can run.
            safetensors.torch.save_file(checkpoint.tensors(), temporary, metadata=meta)
        except safetensors.SafetensorError as error:
            raise OSError(str(error)) from error
        temporary.chmod(mode)  # the library's own files are their owner's alone
    for old in list_checkpoints(folder)[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("round-*.safetensors"))


def load_checkpoint(path: Path, config_hash: str, frozen_checksum: str) -> Checkpoint:
    """Read a checkpoint of this very config; anything else is refused with one line."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            meta: dict[str, Any] = json.loads((file.metadata() or {})["progress"])
            progress = Progress(**meta)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DamagedError(
            f"checkpoint {path} is damaged ({reason}); delete it to go on from the one before, or from the start"
        ) from error
    if progress.config_hash != config_hash:
        raise RunError(
            f"checkpoint {path} belongs to config {progress.config_hash}, not {config_hash}; "
            "restore config.toml or start a new run"
        )
    if progress.frozen_checksum != frozen_checksum:
        raise RunError(
            f"checkpoint {path} was made with frozen weights {progress.frozen_checksum}, here they are "
            f"{frozen_checksum}; the same seed gives other weights on this version: start a new run"
        )
    return Checkpoint(progress, *(_group(tensors, group) for group in ("state", "sent", "losses")))


def last_good(folder: Path, config_hash: str, frozen_checksum: str, warn: Callable[[str], None]) -> Checkpoint | None:
    """The last checkpoint, or, said in one line, the one before if that is damaged; None if there is none yet."""
    problem: DamagedError | None = None
    for path in reversed(list_checkpoints(folder)):
        try:
            checkpoint = load_checkpoint(path, config_hash, frozen_checksum)
        except DamagedError as error:
            problem = problem or error
            continue
        if problem is not None:
            warn(f"{str(problem).rpartition(';')[0]}; going on from {path}")
        return checkpoint
    if problem is not None:
        raise problem
    return None


def _group(tensors: dict[str, Tensor], group: str) -> dict[str, Tensor]:
    return {name.split("/", 1)[1]: tensor for name, tensor in tensors.items() if name.startswith(f"{group}/")}
