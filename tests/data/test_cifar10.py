"""CIFAR-10 files are taken by name from a folder or the archive, and only if their checksums are right."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from peermask.data import datasets
from peermask.data.cifar10 import FOLDER, ORIGINAL, Release, read_release
from peermask.data.download import cache_folder, download
from peermask.errors import DataError
from peermask.files import file_digest


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Release:
    """Six files of two records in the same layout, with their own checksums, in an archive at a file:// address."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    for number, name in enumerate(ORIGINAL.sha1):
        records = np.full((2, 3073), 10 * number, dtype=np.uint8)
        records[:, 0] = [number, 9]
        records.tofile(folder / name)
    archive = tmp_path / "archive.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, FOLDER)
        evil = tarfile.TarInfo("../evil")
        evil.size = 4
        tar.addfile(evil, io.BytesIO(b"evil"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sha1 = {path.name: file_digest(path, "sha1") for path in sorted(folder.iterdir())}
    return Release(archive.as_uri(), file_digest(archive, "md5"), 2, sha1)


def test_records_become_planes_and_labels(tiny: Release, tmp_path: Path) -> None:
    for folder in (tmp_path / FOLDER, tmp_path):
        photos = read_release(tiny, folder)
        assert photos.shape == (3, 32, 32)
        assert photos.train.targets.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
        assert photos.test.inputs.unique().tolist() == [50]


def test_a_download_takes_only_the_six_files_and_is_kept(tiny: Release) -> None:
    first = read_release(tiny, None)
    cached = cache_folder() / FOLDER
    assert sorted(path.name for path in cached.iterdir()) == sorted(tiny.sha1)
    assert [path.name for path in cache_folder().iterdir()] == [FOLDER]
    assert read_release(replace(tiny, url="file:///nowhere"), None).fingerprint == first.fingerprint


def test_damaged_files_are_named(tiny: Release, tmp_path: Path) -> None:
    path = tmp_path / FOLDER / "data_batch_3.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"data_batch_3.bin has 6145 bytes instead of 6146"):
        read_release(tiny, tmp_path)
    path.write_bytes(content[:-1] + b"\0")
    with pytest.raises(DataError, match=r"data_batch_3.bin has the wrong checksum"):
        read_release(tiny, tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"cannot read .*data_batch_3.bin: No such file.*its folder needs"):
        read_release(tiny, tmp_path)


def test_the_data_set_is_the_original(tiny: Release, tmp_path: Path) -> None:
    assert tiny.records != ORIGINAL.records
    with pytest.raises(DataError, match=r"data_batch_1.bin has 6146 bytes instead of 30730000"):
        datasets["cifar10"].make(folder=str(tmp_path))


def test_a_damaged_or_unreachable_archive_leaves_nothing(tiny: Release) -> None:
    with pytest.raises(DataError, match=r"cifar10 is not in .* is damaged as downloaded; unpack .* name its folder"):
        read_release(replace(tiny, archive_md5="0" * 32), None)
    with pytest.raises(DataError, match="cannot download file:///nowhere"):
        read_release(replace(tiny, url="file:///nowhere/archive.tar.gz"), None)
    assert not [path for path in cache_folder().rglob("*") if path.is_file()]


def test_a_download_longer_than_expected_is_stopped(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100)
    with pytest.raises(DataError, match="more than the 99 bytes expected"):
        download(source.as_uri(), tmp_path / "target", 99, lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    download(source.as_uri(), tmp_path / "target", 100, lambda _: None)
    assert (tmp_path / "target").read_bytes() == b"x" * 100
