"""Your own data from an .npz file with x_train, y_train, x_test and y_test, and perhaps agent_train and agent_test.

Every array's header is checked against what the file really holds before numpy allocates it, and arrays of
Python objects are refused: nothing in the file is ever run.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.lib import format as npy
from pydantic import Field

from peermask.data.arrays import Kind, from_arrays
from peermask.data.dataset import Dataset, Task, datasets
from peermask.data.normalisation import Statistics, Wish
from peermask.errors import DataError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
AGENTS = ("agent_train", "agent_test")  # may be there
DENSEST = 1032  # bytes that one byte of a deflate stream can stand for, at most


@datasets.register("npz")
def npz(
    *,
    path: Annotated[str, Field(min_length=1, description=".npz file with x_train, y_train, x_test, y_test")],
    classes: Annotated[
        int | None, Field(ge=1, le=2**20, description="number of labels, 0 to classes - 1; default: counted")
    ] = None,
    kind: Annotated[
        Kind | None, Field(description="what inputs are; by default images if they have three or four axes")
    ] = None,
    task: Annotated[Task | None, Field(description="what targets are; by default classification")] = None,
    normalise: Annotated[
        Wish | None,
        Field(description="'none', 'statistics', {low, high} or {mean, std}; by default as docs/data.md says"),
    ] = None,
    target_scale: Annotated[
        Statistics | None, Field(description="{mean, std} of a regression's targets; of the training data if not set")
    ] = None,
    vocabulary: Annotated[
        int | None, Field(ge=1, le=2**24, description="number of tokens, 0 to vocabulary - 1; default: counted")
    ] = None,
) -> Dataset:
    """Your own inputs and targets from an .npz file, with agent_train and agent_test if samples belong to agents."""
    file = Path(path)
    try:
        with zipfile.ZipFile(file) as archive:
            there = [key for key in AGENTS if f"{key}.npy" in archive.namelist()]
            for key in (*ARRAYS, *there):
                check_header(archive, file, key)
        with np.load(file, allow_pickle=False) as arrays:
            x_train, y_train, x_test, y_test = (arrays[key] for key in ARRAYS)
            agents: dict[str, Any] = {key: arrays[key] for key in there}
    except IsADirectoryError as error:
        raise DataError(f"dataset.path {file} is a folder; name a file in it") from error
    except FileNotFoundError as error:
        raise DataError(f"dataset.path {file} does not exist") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{file} is not an .npz file that can be read: {reason}") from error
    names = None if classes is None else [str(label) for label in range(classes)]
    return from_arrays(
        *(x_train, y_train, x_test, y_test, names, file.stem),
        kind=kind,
        task=task or "classification",
        normalise=normalise,
        target_scale=target_scale,
        vocabulary=vocabulary,
        **agents,
    )


def check_header(archive: zipfile.ZipFile, file: Path, key: str) -> None:
    if f"{key}.npy" not in archive.namelist():
        raise DataError(f"{file} has no array {key}; it needs {', '.join(ARRAYS)}")
    info = archive.getinfo(f"{key}.npy")
    with archive.open(info) as member:
        version = npy.read_magic(member)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(member)
        header = member.tell()
    if dtype.hasobject:
        raise DataError(f"{file} array {key} holds Python objects, which are never loaded; save an array of numbers")
    needed = header + math.prod(shape) * dtype.itemsize
    if needed != info.file_size or info.file_size > info.compress_size * DENSEST:
        raise DataError(f"{file} array {key} claims {needed} bytes, more than the file has: it is damaged")
