"""The 1,797 optical digits of 8 x 8 pixels that come with the package (see DIGITS.md)."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
from numpy.typing import NDArray

from peermask.data.dataset import Dataset, Split, datasets
from peermask.data.normalisation import Range
from peermask.data.partition import apportion
from peermask.streams import stream

TEST = 360  # the other 1,437 train


@datasets.register("digits")
def digits() -> Dataset:
    """1,797 handwritten digits, 1 x 8 x 8, shipped with the package."""
    with files("peermask.data").joinpath("digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as held:
        images, labels = held["images"], held["labels"].astype(np.int64)  # [n, 8, 8], [n]
    test = pick_test(labels)
    train = np.setdiff1d(np.arange(len(labels)), test)
    splits = [
        Split(torch.from_numpy(images[chosen]).unsqueeze(1), torch.from_numpy(labels[chosen]))
        for chosen in (train, test)
    ]
    return Dataset("digits", splits[0], splits[1], classes=tuple("0123456789"), normalisation=Range(high=16.0))


def pick_test(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pick the same 360 test samples for all runs, every class in proportion, so that accuracies can be compared."""
    counts = np.bincount(labels)  # [10]
    takes = apportion(TEST, counts)
    draw = stream(0, "digits-split")
    shuffled = [np.flatnonzero(labels == label)[draw.permutation(count)] for label, count in enumerate(counts)]
    return np.sort(np.concatenate([samples[:take] for samples, take in zip(shuffled, takes, strict=True)]))
