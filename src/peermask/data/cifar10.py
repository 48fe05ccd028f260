"""CIFAR-10: 60,000 colour images, 32 x 32, in the binary layout of its home page.

A record is one label byte and 3,072 bytes of red, green and blue planes; a file has 10,000 records.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
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
ARCHIVE_LIMIT = 200 * 2**20  # bytes; it has 170 MB
FOLDER = "cifar-10-batches-bin"  # its name in the archive
RECORD = 3_073  # bytes


@dataclass(frozen=True)
class Release:
    """The address of the files, and the hashes of the real ones."""

    url: str
    archive_md5: str
    records: int  # in a file
    sha1: Mapping[str, str]  # by name of a file


ORIGINAL = Release(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    10_000,
    {
        "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
        "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
    },
)


@datasets.register("cifar10")
def cifar10(
    *,
    folder: Annotated[
        str | None, Field(description="folder with the six .bin files; default: cached or downloaded")
    ] = None,
) -> Dataset:
    """60,000 photographs in 10 classes, 3 x 32 x 32 (50,000 train)."""
    return read_release(ORIGINAL, Path(folder) if folder is not None else None)


def read_release(release: Release, folder: Path | None) -> Dataset:
    """Read the files of a folder; without one, of the cache, filled by a download."""
    home = folder or cached_folder(release)
    if (home / FOLDER).is_dir():  # the archive was unpacked here
        home = home / FOLDER
    names = [[name for name in release.sha1 if name.startswith(part)] for part in ("data", "test")]
    splits = [read_split(release, home, part) for part in names]
    return Dataset("cifar10", splits[0], splits[1], CLASSES, Range(high=255.0))


def cached_folder(release: Release) -> Path:
    home = cache_folder() / FOLDER
    if all((home / name).is_file() for name in release.sha1):
        return home
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as temporary:
            archive = Path(temporary) / "archive.tar.gz"
            download(release.url, archive, ARCHIVE_LIMIT, partial(check_archive, release))
            unpack(release, archive, home)
    except (DataError, OSError) as error:
        raise DataError(
            f"cifar10 is not in {home}, and {error}; unpack {release.url} and name its folder "
            "(dataset.folder, or --data-dir)"
        ) from error
    return home


def check_archive(release: Release, path: Path) -> None:
    if file_digest(path, "md5") != release.archive_md5:
        raise DataError(f"{release.url} is damaged as downloaded")


def unpack(release: Release, archive: Path, home: Path) -> None:
    """Unpack only the six files, by name, and check each; write nothing else of the archive."""
    try:
        with tarfile.open(archive) as tar:
            for name in release.sha1:
                member = tar.extractfile(f"{FOLDER}/{name}")
                if member is None:
                    raise DataError(f"{release.url} has no plain file {name}")
                with member, replacing(home / name) as temporary:
                    with temporary.open("wb") as file:
                        shutil.copyfileobj(member, file)
                    check_file(release, temporary, name)
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise DataError(f"{release.url} cannot be unpacked: {error}") from error


def check_file(release: Release, path: Path, name: str) -> None:
    try:
        size = path.stat().st_size
        if size != release.records * RECORD:
            raise DataError(f"{path} has {size} bytes instead of {release.records * RECORD}: it is damaged")
        if file_digest(path, "sha1") != release.sha1[name]:
            raise DataError(f"{path} has the wrong checksum: it is damaged, or not CIFAR-10")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; its folder needs {', '.join(release.sha1)}") from error


def read_split(release: Release, home: Path, names: list[str]) -> Split:
    with ThreadPoolExecutor() as pool:  # files are read and hashed side by side
        files = list(pool.map(lambda name: read_records(release, home / name, name), names))
    images = np.concatenate([records[:, 1:] for records in files]).reshape(-1, 3, 32, 32)  # [n, 3, 32, 32]
    labels = np.concatenate([records[:, 0] for records in files])  # [n]
    return Split(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))


def read_records(release: Release, path: Path, name: str) -> NDArray[np.uint8]:  # [records, 3073]
    check_file(release, path, name)
    return np.fromfile(path, dtype=np.uint8).reshape(-1, RECORD)
