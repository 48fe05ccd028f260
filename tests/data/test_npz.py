"""Arrays of one's own: accepted in the usual layouts, refused with the array's name otherwise."""

from __future__ import annotations

import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from peermask.data import Dataset, datasets, from_arrays, from_torch
from peermask.data.normalisation import Range
from peermask.errors import DataError

LABELS = np.array([0, 1, 2])


def load(path: Path) -> Dataset:
    return datasets["npz"].make(path=str(path))


def save(path: Path, **changes: Any) -> Path:
    images = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    arrays = {"x_train": images, "y_train": LABELS, "x_test": images, "y_test": LABELS}
    np.savez_compressed(path, **(arrays | changes))
    return path


def test_a_saved_file_is_read_back(tmp_path: Path) -> None:
    mine = load(save(tmp_path / "mine.npz"))
    assert (mine.name, mine.shape, mine.classes, mine.normalisation.high) == ("mine", (1, 4, 5), ("0", "1", "2"), 255)
    assert mine.train.inputs.flatten().tolist() == list(range(60))


def test_a_file_that_lacks_the_highest_labels_is_told_how_many_there_are(tmp_path: Path) -> None:
    path = str(save(tmp_path / "mine.npz"))
    assert datasets["npz"].make(path=path, classes=5).classes == ("0", "1", "2", "3", "4")
    with pytest.raises(DataError, match="label"):
        datasets["npz"].make(path=path, classes=2)


@pytest.mark.parametrize(
    ("shape", "expected"), [((3, 8, 9), (1, 8, 9)), ((3, 3, 8, 9), (3, 8, 9)), ((3, 8, 9, 3), (3, 8, 9))]
)
def test_three_layouts_are_understood(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    images = np.random.Generator(np.random.Philox(0)).random(shape)
    mine = from_arrays(images, LABELS, images, LABELS)
    assert mine.shape == expected
    assert (mine.train.inputs.dtype, mine.normalisation) == (torch.float32, Range(high=1))


def test_channels_last_are_moved_not_mixed() -> None:
    images = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    images[..., 2] = 7
    mine = from_arrays(images, [0], images, [0])
    assert mine.train.inputs[0, :, 0, 0].tolist() == [0, 0, 7]


def test_a_torch_dataset_is_read_once() -> None:
    samples = TensorDataset(torch.rand(3, 1, 4, 4), torch.tensor(LABELS))
    mine = from_torch(samples, samples, classes=["cat", "dog", "owl"])
    assert (mine.classes, mine.shape) == (("cat", "dog", "owl"), (1, 4, 4))
    assert torch.equal(mine.test.inputs, samples.tensors[0])


def test_labels_of_a_torch_dataset_may_be_text() -> None:
    def samples(*labels: str | int) -> list[tuple[np.ndarray, str | int]]:
        return [(np.zeros((4, 4)), label) for label in labels]

    mine = from_torch(samples("owl", "cat", "owl"), samples("cat", "dog"))
    assert mine.classes == ("cat", "dog", "owl")
    assert (mine.train.targets.tolist(), mine.test.targets.tolist()) == ([2, 0, 2], [0, 1])
    named = from_torch(samples("owl", "cat"), samples("cat"), classes=["owl", "cat"])
    assert (named.classes, named.train.targets.tolist()) == (("owl", "cat"), [0, 1])
    with pytest.raises(DataError, match="torch y_test has label 'cow', which is not in classes; add it"):
        from_torch(samples("owl", "cat"), samples("cow"), classes=["owl", "cat"])
    with pytest.raises(DataError, match="torch y_test has numbers as labels, but the other split has text"):
        from_torch(samples("owl", "cat"), samples(0, 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.array([None, 1, "a"], dtype=object)}, "array x_train holds Python objects"),
        ({"x_train": np.zeros(3)}, r"mine x_train has shape \(3,\)"),
        ({"x_train": np.full((3, 4, 5), 2.5)}, r"x_train has pixels from 2.5 to 2.5; float64 images lie in \[0, 1\]"),
        ({"x_train": np.full((3, 4, 5), np.nan)}, "x_train has a pixel that is NaN"),
        ({"x_test": np.full((3, 4, 5), 300)}, r"x_test has pixels from 300 to 300; int64 images lie in \[0, 255\]"),
        ({"x_test": np.full((3, 4, 5), "a")}, "x_test holds <U1"),
        ({"x_test": np.zeros((3, 4, 5))}, "x_train is torch.uint8 but x_test is torch.float32"),
        ({"y_test": np.array([0.0, 1.0, 2.0])}, "y_test is float64"),
        ({"y_train": np.array([0, 1])}, "mine train has 3 inputs but 2 targets"),
        ({"y_train": np.array([0, 1, -1])}, "labels from -1 to 1"),
        ({"x_train": np.zeros((0, 4, 5), np.uint8), "y_train": LABELS[:0]}, "mine train has no samples"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(save(tmp_path / "mine.npz", **changes))


def test_missing_files_and_arrays_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.npz does not exist"):
        load(tmp_path / "none.npz")
    with pytest.raises(DataError, match="is a folder; name a file in it"):
        load(tmp_path)
    np.savez(tmp_path / "half.npz", x_train=LABELS)
    with pytest.raises(DataError, match=r"half.npz has no array y_train; it needs x_train, y_train"):
        load(tmp_path / "half.npz")


@pytest.mark.parametrize("kept", [0, 10, 100, -30, -1])
def test_a_truncated_file_is_one_clear_error(tmp_path: Path, kept: int) -> None:
    path = save(tmp_path / "mine.npz")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"mine.npz is not an .npz file that can be read"):
        load(path)


def test_any_flipped_byte_is_an_error_or_harmless(tmp_path: Path) -> None:
    whole = save(tmp_path / "mine.npz").read_bytes()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        (tmp_path / "mine.npz").write_bytes(damaged)
        with suppress(DataError):
            load(tmp_path / "mine.npz")


def test_a_header_that_claims_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "mine.npz")
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000,), }\n"
    lie = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", lie)
    with pytest.raises(DataError, match=r"array x_train claims 10000000000\d\d bytes, more than the file has"):
        load(path)
