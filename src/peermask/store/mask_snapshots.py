"""Every agent's mask at each checkpoint, packed eight to a byte, so that a report can show how masks grew.

masks/round-NNNNNN.npz   masks: [N, ceil(P_w / 8)] uint8

A mask is where a personal model is not zero, so methods with real-valued weights have one too.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from peermask.errors import RunError
from peermask.files import write_atomically, writing
from peermask.store.folder import round_of

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
    for kept, path in list_masks(folder).items():
        if kept > round:
            path.unlink(missing_ok=True)


def thin_out(folder: Path) -> None:
    """Drop the round nearest to its neighbours until few enough are left; first and last always stay."""
    held = list_masks(folder)
    while len(held) > SNAPSHOTS_KEPT:
        rounds = list(held)
        gaps = [after - before for before, after in zip(rounds, rounds[2:], strict=False)]
        held.pop(rounds[1 + gaps.index(min(gaps))]).unlink(missing_ok=True)
