"""IDX files, plain or gzipped: the format of the MNIST family.

Two zero bytes, a type byte (8: unsigned bytes), the number of dimensions, each size as a big-endian 32-bit
number, then the values.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from peermask.errors import DataError

LARGEST = 2**30  # values in one file
GZIP = b"\x1f\x8b"


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == GZIP
        with gzip.open(path) if zipped else path.open("rb") as file:
            return read_values(path, cast(BinaryIO, file), dimensions)
    except (OSError, EOFError, zlib.error) as error:  # a broken gzip stream gives any of these
        raise DataError(f"cannot read {path}: {error}") from error


def read_values(path: Path, file: BinaryIO, dimensions: int) -> NDArray[np.uint8]:
    header = file.read(4 + 4 * dimensions)
    if header[:4] != bytes([0, 0, 8, dimensions]) or len(header) < 4 + 4 * dimensions:
        raise DataError(f"{path} is not an IDX file of bytes in {dimensions} dimensions")
    sizes = [int.from_bytes(header[k : k + 4], "big") for k in range(4, len(header), 4)]
    count = math.prod(sizes)
    if count > LARGEST:
        raise DataError(f"{path} claims {count} values in its header; {LARGEST} are allowed")
    values = file.read(count + 1)  # one more than needed shows that the file is too long
    if len(values) != count:
        amount = "more" if len(values) > count else f"only {len(values)}"
        raise DataError(f"{path} should hold {count} values but has {amount}: it is damaged")
    return np.frombuffer(values, dtype=np.uint8).reshape(sizes).copy()  # a copy, because bytes are read-only
