"""Checkpoints: the state of a run after a round, and every agent's mask, written atomically and read without trust."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import zipfile
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import safetensors
from numpy.typing import NDArray

from peermask.errors import RunError
from peermask.files import replacing, write_atomically, writing
from peermask.store.folder import round_of
from peermask.store.table import Extent, check_extents, extents

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from torch import Tensor

CHECKPOINTS_KEPT = 2  # the one before is there should the last be damaged
_UNREADABLE = (safetensors.SafetensorError, AttributeError, KeyError, TypeError, ValueError)


class DamagedError(RunError):
    """Error: an unreadable checkpoint; the previous one can be used. A wrong config is another error."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run, besides the agents' states."""

    round: int
    config_hash: str
    frozen_checksum: str
    best: float = float("-inf")  # highest mean validation accuracy so far
    waited: int = 0  # evaluations since then
    seconds: float = 0.0
    tables: dict[str, Extent] = field(default_factory=dict)  # what the run's tables held then, by file name


@dataclass(frozen=True)
class Checkpoint:
    progress: Progress
    states: dict[str, Tensor]  # the agents' states, one row an agent
    sent: dict[str, Tensor]  # the last messages, which receivers hold and deltas refer to
    losses: dict[str, Tensor]  # since the last evaluation: see run/loop.py

    @classmethod
    def of(cls, progress: Progress, tensors: Mapping[str, Tensor]) -> Checkpoint:
        """Restore the result of `tensors`."""
        groups = ("state/", "sent/", "losses/")
        parts = ({n.removeprefix(group): t for n, t in tensors.items() if n.startswith(group)} for group in groups)
        return cls(progress, *parts)

    def tensors(self) -> dict[str, Tensor]:
        groups = {"state": self.states, "sent": self.sent, "losses": self.losses}
        return {f"{group}/{name}": t.contiguous() for group, part in groups.items() for name, t in part.items()}


def save_checkpoint(folder: Path, checkpoint: Checkpoint, ready: Callable[[], object] = lambda: None) -> Path:
    """Write a checkpoint into the folder `checkpoints` of a run, whose tables lie beside it.

    `ready` is called before the file has its name: it waits for what must be on the disk first.
    """
    from safetensors.torch import save_file  # tables and progress are read without torch

    number, tensors = checkpoint.progress.round, checkpoint.tensors()
    path = folder / checkpoint_name(number)
    progress = json.dumps(asdict(replace(checkpoint.progress, tables=extents(folder.parent, number))))
    meta = {"progress": progress, "digest": hash_tensors(tensors, progress)}
    with writing(path), replacing(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            # Not `save`, which makes one long string of it first, while no other thread can run.
            save_file(tensors, temporary, metadata=meta)
        except safetensors.SafetensorError as error:
            code = re.search(r"os error (\d+)", str(error))  # such as that of a full disk
            raise (OSError(int(code[1]), os.strerror(int(code[1]))) if code else OSError(str(error))) from error
        temporary.chmod(mode)  # the library writes files that only their owner can read
        ready()
    for old in list_checkpoints(folder)[:-CHECKPOINTS_KEPT]:
        old.unlink(missing_ok=True)
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """List checkpoints, oldest first."""
    return sorted(folder.glob("round-*.safetensors"), key=round_of)


def load_checkpoint(path: Path, config_hashes: Collection[str], frozen_checksum: str) -> Checkpoint:
    """Read a checkpoint of this very config; anything else is refused with one line."""
    try:
        path.open("rb").close()  # an unreadable file need not be damaged: nobody is told to delete it
        with safetensors.safe_open(path, framework="pt") as file:
            meta: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
        if meta["digest"] != hash_tensors(tensors, meta["progress"]):
            raise ValueError("its digest does not match")
        progress = _progress(json.loads(meta["progress"]))
    except OSError as error:
        raise RunError(f"checkpoint {path} cannot be read: {error.strerror or error}; fix this and retry") from None
    except _UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DamagedError(
            f"checkpoint {path} is damaged ({reason}); delete it to resume from the one before, or from the start"
        ) from error
    if progress.config_hash not in config_hashes:
        raise RunError(
            f"checkpoint {path} belongs to config {progress.config_hash}, not {' or '.join(config_hashes)}; "
            "restore config.toml or start a new run"
        )
    if progress.frozen_checksum != frozen_checksum:
        raise RunError(
            f"checkpoint {path} was made with frozen weights {progress.frozen_checksum}, here they are "
            f"{frozen_checksum}; this version makes other weights from the same seed: start a new run"
        )
    return Checkpoint.of(progress, tensors)


def last_good(
    folder: Path,
    config_hashes: Collection[str],
    frozen_checksum: str,
    warn: Callable[[str], None] = logger.warning,  # a fleet's log has a format of its own
) -> Checkpoint | None:
    """Load the last checkpoint, or with a warning the previous one if it is damaged; None without any."""
    problem: DamagedError | None = None
    for path in reversed(list_checkpoints(folder)):
        try:
            checkpoint = load_checkpoint(path, config_hashes, frozen_checksum)
        except DamagedError as error:
            problem = problem or error
            continue
        if problem is not None:
            warn(f"{str(problem).rpartition(';')[0]}; resuming from {path}")
        return checkpoint
    if problem is not None:
        raise problem
    return None


def check_tables_since(folder: Path) -> None:
    """Check that the tables of an unfinished run still have the rows of its last checkpoint."""
    for path in list_checkpoints(folder)[-1:]:
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                progress = _progress(json.loads((file.metadata() or {})["progress"]))
        except (OSError, *_UNREADABLE):
            return  # reported when the checkpoint is needed
        check_extents(folder.parent, progress.tables, path)


def forget_checkpoints_after(folder: Path, round: int) -> None:
    """Delete damaged checkpoints: a run resumes from the last that is whole."""
    for path in list_checkpoints(folder):
        if round_of(path) > round:
            path.unlink(missing_ok=True)


def checkpoint_name(round: int) -> str:
    return f"round-{round:06d}.safetensors"


def _progress(meta: dict[str, Any]) -> Progress:
    tables = {name: Extent(int(size), str(sha256)) for name, (size, sha256) in meta["tables"].items()}
    return Progress(**{**meta, "tables": tables})


def hash_tensors(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """Hash a text and named tensors, and let other threads run meanwhile, so that no round waits for it."""
    import torch

    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


# Writes to a slow disk while rounds are computed.


class Background:
    """Thread that does one thing at a time, in order. Use as a context manager, which waits for the last.

    Errors are raised where the caller next waits. Every `do` waits first, so earlier writes are complete.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="background")
        self._last: Future[None] | None = None

    def do(self, work: Callable[[], None]) -> None:
        self.wait()
        self._last = self._pool.submit(work)

    def wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._pool.shutdown()


# Every agent's mask at each checkpoint, packed eight to a byte, so that a report can show how masks grew.
#
# masks/round-NNNNNN.npz   masks: [N, ceil(P_w / 8)] uint8
#
# A mask is where a personal model is not zero, so methods with real-valued weights have one too.

NPY_HEADER = 2**16  # bytes before the values; numpy reads no more of them
SNAPSHOTS_KEPT = 24  # rounds; beyond that they are thinned out evenly, so a long run costs no more than a short one

Masks: TypeAlias = NDArray[np.bool_]


def save_masks(folder: Path, round: int, masks: Masks) -> Path:  # [N, P_w]
    with writing(folder):
        folder.mkdir(exist_ok=True)
    packed = io.BytesIO()
    # The format of `np.savez_compressed`, with less effort: masks hardly get smaller with more, and rounds may wait.
    with (
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("masks.npy", "w", force_zip64=True) as member,
    ):
        np.lib.format.write_array(member, np.packbits(masks, axis=1), allow_pickle=False)
    path = folder / f"round-{round:06d}.npz"
    write_atomically(path, packed.getvalue())
    thin_out(folder)
    return path


def list_masks(folder: Path) -> dict[int, Path]:
    """List mask files by round, oldest first."""
    return {round_of(path): path for path in sorted(folder.glob("round-*.npz"), key=round_of)}


def load_masks(path: Path, weights: int, most: int = 2**16) -> Masks:
    """[N, P_w] with N <= `most`; a file that is anything else is refused with one line, before it is unpacked."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            if archive.getinfo("masks.npy").file_size > most * ((weights + 7) // 8) + NPY_HEADER:
                raise ValueError("larger than the masks of all agents")
            with archive.open("masks.npy") as member:
                packed = np.lib.format.read_array(member, allow_pickle=False)
    except OSError as error:
        raise RunError(f"masks {path} cannot be read: {error.strerror or error}; fix this, or delete them") from error
    except Exception as error:  # a hostile archive may raise anything; numpy's advice to unpickle it is not repeated
        raise RunError(f"masks {path} are damaged: no table of packed masks; delete that file") from error
    if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != (weights + 7) // 8:
        raise RunError(f"masks {path} are {packed.dtype} {list(packed.shape)}, not of {weights} weights; delete it")
    return np.unpackbits(packed, axis=1, count=weights).astype(np.bool_)


def forget_masks_after(folder: Path, round: int) -> None:
    for saved, path in list_masks(folder).items():
        if saved > round:
            path.unlink(missing_ok=True)


def thin_out(folder: Path) -> None:
    """Drop the round nearest to its neighbours until few enough are left; first and last always stay."""
    saved = list_masks(folder)
    while len(saved) > SNAPSHOTS_KEPT:
        rounds = list(saved)
        gaps = [after - before for before, after in zip(rounds, rounds[2:], strict=False)]
        saved.pop(rounds[1 + gaps.index(min(gaps))]).unlink(missing_ok=True)
