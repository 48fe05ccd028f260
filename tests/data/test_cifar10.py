"""CIFAR-10 files are taken by name from a folder or the archive, and only if their checksums are right."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from peermask.data import cifar10, datasets
from peermask.data.download import cache_folder, download
from peermask.errors import DataError
from peermask.files import file_digest


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six files of two records in the same layout, with their own checksums, in an archive at a file:// address."""
    folder = tmp_path / cifar10.FOLDER
    folder.mkdir()
    for number, name in enumerate(cifar10.SHA1):
        records = np.full((2, 3073), 10 * number, dtype=np.uint8)
        records[:, 0] = [number, 9]
        records.tofile(folder / name)
    monkeypatch.setattr(cifar10, "SHAPE", (2, 3073))
    monkeypatch.setattr(cifar10, "SHA1", {path.name: file_digest(path, "sha1") for path in sorted(folder.iterdir())})
    archive = tmp_path / "archive.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, cifar10.FOLDER)
        evil = tarfile.TarInfo("../evil")
        evil.size = 4
        tar.addfile(evil, io.BytesIO(b"evil"))
    monkeypatch.setattr(cifar10, "URL", archive.as_uri())
    monkeypatch.setattr(cifar10, "ARCHIVE_MD5", file_digest(archive, "md5"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_records_become_planes_and_labels(tiny: Path) -> None:
    for folder in (tiny, tiny.parent):
        photos = datasets["cifar10"].make(folder=str(folder))
        assert photos.shape == (3, 32, 32)
        assert photos.train.targets.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
        assert photos.test.inputs.unique().tolist() == [50]


@pytest.mark.usefixtures("tiny")
def test_a_download_takes_only_the_six_files_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = datasets["cifar10"].make()
    cached = cache_folder() / cifar10.FOLDER
    assert sorted(path.name for path in cached.iterdir()) == sorted(cifar10.SHA1)
    assert [path.name for path in cache_folder().iterdir()] == [cifar10.FOLDER]
    monkeypatch.setattr(cifar10, "URL", "file:///nowhere")
    assert datasets["cifar10"].make().fingerprint == first.fingerprint


def test_damaged_files_are_named(tiny: Path) -> None:
    path = tiny / "data_batch_3.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"data_batch_3.bin has 6145 bytes instead of 6146"):
        datasets["cifar10"].make(folder=str(tiny))
    path.write_bytes(content[:-1] + b"\0")
    with pytest.raises(DataError, match=r"data_batch_3.bin has the wrong checksum"):
        datasets["cifar10"].make(folder=str(tiny))
    path.unlink()
    with pytest.raises(DataError, match=r"cannot read .*data_batch_3.bin: No such file.*its folder needs"):
        datasets["cifar10"].make(folder=str(tiny))


@pytest.mark.usefixtures("tiny")
def test_a_damaged_or_unreachable_archive_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "ARCHIVE_MD5", "0" * 32)
    with pytest.raises(DataError, match=r"cifar10 is not in .* is damaged as downloaded; unpack .* name its folder"):
        datasets["cifar10"].make()
    monkeypatch.setattr(cifar10, "URL", "file:///nowhere/archive.tar.gz")
    with pytest.raises(DataError, match="cannot download file:///nowhere"):
        datasets["cifar10"].make()
    assert not [path for path in cache_folder().rglob("*") if path.is_file()]


def test_a_download_longer_than_expected_is_stopped(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100)
    with pytest.raises(DataError, match="more than the 99 bytes expected"):
        download(source.as_uri(), tmp_path / "target", 99, lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    download(source.as_uri(), tmp_path / "target", 100, lambda _: None)
    assert (tmp_path / "target").read_bytes() == b"x" * 100
