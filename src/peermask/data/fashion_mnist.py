"""Fashion-MNIST: 70,000 grey images of clothes from a folder, Debian's package, or its home page."""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from peermask.data.dataset import Dataset, Split, datasets
from peermask.data.download import cache_folder, download
from peermask.data.normalisation import Range
from peermask.errors import DataError

# IDX files, plain or gzipped: two zero bytes, a type byte (8: unsigned bytes), the number of dimensions, each size as a
# big-endian 32-bit number, then the values.

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


CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
# Its only public address has no https; every file's contents are checked below.
HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist
LIMIT = 30 * 2**20  # the largest file has 26 MB
SHA256 = {  # of the values, after the header: the same however the file was compressed
    "train-images-idx3-ubyte": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
    "train-labels-idx1-ubyte": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
    "t10k-images-idx3-ubyte": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
    "t10k-labels-idx1-ubyte": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
}


@datasets.register("fashion-mnist")
def fashion_mnist(
    *,
    folder: Annotated[
        str | None, Field(description="folder with the four IDX files; default: found or downloaded")
    ] = None,
) -> Dataset:
    """70,000 pictures of clothes in 10 classes, 1 x 28 x 28 (60,000 train)."""
    home = Path(folder) if folder is not None else find_folder()
    train, test = (
        Split(
            torch.from_numpy(read_from(home, f"{part}-images-idx3-ubyte")).unsqueeze(1),  # [n, 1, 28, 28]
            torch.from_numpy(read_from(home, f"{part}-labels-idx1-ubyte")).long(),  # [n]
        )
        for part in ("train", "t10k")
    )
    return Dataset("fashion-mnist", train, test, CLASSES, Range(high=255.0))


def find_folder(debian: Path = DEBIAN, home: str = HOME) -> Path:
    """Debian's folder, else the cache, filled from the home page where files are missing."""
    if all(locate(debian, name) for name in SHA256):
        return debian
    cache = cache_folder() / "fashion-mnist"
    for name in SHA256:
        if not locate(cache, name):
            try:
                download(f"{home}/{name}.gz", cache / f"{name}.gz", LIMIT, partial(read_genuine, name=name))
            except DataError as error:
                raise DataError(
                    f"fashion-mnist file {name}.gz is neither in {debian} nor in {cache}, and {error}; "
                    f"install Debian's dataset-fashion-mnist or set dataset.folder to a folder that has it"
                ) from error
    return cache


def locate(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_from(folder: Path, name: str) -> NDArray[np.uint8]:
    path = locate(folder, name)
    if path is None:
        raise DataError(f"{folder} has neither {name} nor {name}.gz; the folder needs all four IDX files")
    return read_genuine(path, name)


def read_genuine(path: Path, name: str) -> NDArray[np.uint8]:
    values = read_idx(path, dimensions=3 if "images" in name else 1)
    if hashlib.sha256(values.data).hexdigest() != SHA256[name]:
        raise DataError(f"{path} does not hold Fashion-MNIST's {name}: it is damaged, or another dataset")
    return values
