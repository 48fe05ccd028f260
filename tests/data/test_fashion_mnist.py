"""IDX files are bounded before they are read, and only Fashion-MNIST's own values are accepted."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from peermask.data import datasets, fashion_mnist
from peermask.data.fashion_mnist import read_idx
from peermask.errors import DataError

HEADER = bytes([0, 0, 8, 1, 0, 0, 0, 3])


@pytest.mark.parametrize("zipped", [False, True])
def test_plain_and_gzipped_files_are_read(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "labels"
    path.write_bytes(gzip.compress(HEADER + b"\1\2\3") if zipped else HEADER + b"\1\2\3")
    assert read_idx(path, 1).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "labels is not an IDX file of bytes in 1 dimensions"),
        (HEADER[:6], "is not an IDX file"),
        (b"\0\0\x0d" + HEADER[3:] + b"\1\2\3", "is not an IDX file"),
        (HEADER + b"\1\2", "should hold 3 values but has only 2"),
        (HEADER + b"\1\2\3\4", "should hold 3 values but has more"),
        (HEADER[:4] + b"\xff\xff\xff\xff", "claims 4294967295 values"),
        (gzip.compress(HEADER + b"\1\2\3", mtime=0)[:-9], "cannot read .*labels"),
        (gzip.compress(HEADER + b"\1\2\3", mtime=0)[:-8] + b"\0" * 8, "cannot read .*labels"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "labels").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / "labels", 1)


def test_a_folder_without_the_files_says_which(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz"):
        datasets["fashion-mnist"].make(folder=str(tmp_path))


def test_other_values_are_not_fashion_mnist(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3] + [0, 0, 0, 1] * 3) + b"\7")
    with pytest.raises(DataError, match="does not hold Fashion-MNIST's train-images-idx3-ubyte"):
        datasets["fashion-mnist"].make(folder=str(tmp_path))


def test_without_network_the_error_says_where_it_looked_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(
        DataError,
        match=r"train-images-idx3-ubyte.gz is neither in .*debian nor in .*cache/peermask.*set dataset.folder",
    ):
        fashion_mnist.find_folder(tmp_path / "debian", (tmp_path / "nowhere").as_uri())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]  # nothing half-fetched is left


@pytest.mark.skipif(not fashion_mnist.DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_debians_copy_is_the_real_one() -> None:
    clothes = datasets["fashion-mnist"].make()
    assert (len(clothes.train), len(clothes.test), clothes.shape) == (60_000, 10_000, (1, 28, 28))
    assert np.bincount(clothes.test.targets).tolist() == [1000] * 10
