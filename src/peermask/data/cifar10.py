"""CIFAR-10: 60,000 colour images, 32 x 32, in the binary layout of its home page.

A record is one label byte and 3,072 bytes of red, green and blue planes; a file has 10,000 records.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from peermask.data.dataset import Dataset, Split, datasets
from peermask.data.download import cache_folder, download
from peermask.data.normalisation import Range
from peermask.errors import DataError
from peermask.files import file_digest, replacing

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
ARCHIVE_LIMIT = 200 * 2**20  # it has 170 MB
FOLDER = "cifar-10-batches-bin"  # its name in the archive
SHAPE = (10_000, 3_073)  # records per file, bytes per record
SHA1 = {
    "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
}


@datasets.register("cifar10")
def cifar10(
    *,
    folder: Annotated[
        str | None, Field(description="folder with the six .bin files; default: cached or downloaded")
    ] = None,
) -> Dataset:
    """60,000 photographs in 10 classes, 3 x 32 x 32 (50,000 train)."""
    home = given_folder(Path(folder)) if folder is not None else cached_folder()
    splits = [read_split(home, [name for name in SHA1 if name.startswith(part)]) for part in ("data", "test")]
    return Dataset("cifar10", splits[0], splits[1], CLASSES, Range(high=255.0))


def given_folder(folder: Path) -> Path:
    """The folder itself, or the archive's folder inside it."""
    inner = folder / FOLDER
    return inner if inner.is_dir() else folder


def cached_folder() -> Path:
    home = cache_folder() / FOLDER
    if all((home / name).is_file() for name in SHA1):
        return home
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as temporary:
            archive = Path(temporary) / "archive.tar.gz"
            download(URL, archive, ARCHIVE_LIMIT, check_archive)
            unpack(archive, home)
    except (DataError, OSError) as error:
        raise DataError(
            f"cifar10 is not in {home}, and {error}; unpack {URL} and name its folder (dataset.folder, or --data-dir)"
        ) from error
    return home


def check_archive(path: Path) -> None:
    if file_digest(path, "md5") != ARCHIVE_MD5:
        raise DataError(f"{URL} is damaged as downloaded")


def unpack(archive: Path, home: Path) -> None:
    """Takes only the six files, by name, and checks each: nothing else in the archive is ever written."""
    try:
        with tarfile.open(archive) as tar:
            for name in SHA1:
                member = tar.extractfile(f"{FOLDER}/{name}")
                if member is None:
                    raise DataError(f"{URL} has no plain file {name}")
                with member, replacing(home / name) as temporary:
                    with temporary.open("wb") as file:
                        shutil.copyfileobj(member, file)
                    check_file(temporary, name)
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise DataError(f"{URL} cannot be unpacked: {error}") from error


def check_file(path: Path, name: str) -> None:
    try:
        size = path.stat().st_size
        if size != SHAPE[0] * SHAPE[1]:
            raise DataError(f"{path} has {size} bytes instead of {SHAPE[0] * SHAPE[1]}: it is damaged")
        if file_digest(path, "sha1") != SHA1[name]:
            raise DataError(f"{path} has the wrong checksum: it is damaged, or not CIFAR-10")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; its folder needs {', '.join(SHA1)}") from error


def read_split(home: Path, names: list[str]) -> Split:
    with ThreadPoolExecutor() as pool:  # files are read and hashed side by side
        files = list(pool.map(lambda name: read_records(home / name, name), names))
    images = np.concatenate([records[:, 1:] for records in files]).reshape(-1, 3, 32, 32)  # [n, 3, 32, 32]
    labels = np.concatenate([records[:, 0] for records in files])  # [n]
    return Split(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))


def read_records(path: Path, name: str) -> NDArray[np.uint8]:  # [10000, 3073]
    check_file(path, name)
    return np.fromfile(path, dtype=np.uint8).reshape(SHAPE)
