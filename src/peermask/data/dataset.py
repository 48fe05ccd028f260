"""A dataset: labelled images for training and for testing, checked once when made.

A dataset a config can choose is one file with one function, registered in `datasets`, whose keyword-only
parameters are its options. Handing samples to agents is in partition.py and local.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from peermask.errors import DataError
from peermask.kernels import by_kernels
from peermask.kernels.batches import gather_triton
from peermask.registry import Registry


@dataclass(frozen=True, eq=False)
class Split:
    images: Tensor  # [n, C, H, W] uint8 or float32
    labels: Tensor  # [n] int64

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    peak: float  # the pixel value that stands for 1: 255 for bytes, 16 for digits, 1 for floats in [0, 1]

    def __post_init__(self) -> None:
        if not self.classes:
            raise DataError(f"{self.name} has no classes")
        if not 0 < self.peak < float("inf"):
            raise DataError(f"{self.name} has peak {self.peak}; it must be a number above 0")
        for part, split in (("train", self.train), ("test", self.test)):
            check_split(f"{self.name} {part}", split, len(self.classes))
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            shapes = [tuple(split.images.shape[1:]) for split in (self.train, self.test)]
            raise DataError(f"{self.name} has train images of shape {shapes[0]} but test images of {shapes[1]}")

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    @cached_property
    def fingerprint(self) -> str:
        """sha256 in hex over images, labels and class names: equal ones mean the same data."""
        digest = hashlib.sha256("\n".join(self.classes).encode())
        for tensor in (self.train.images, self.train.labels, self.test.images, self.test.labels):
            digest.update(f"\n{tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
        return digest.hexdigest()

    def normalise(self, images: Tensor) -> Tensor:
        """(x / peak - 0.5) / 0.5 in float32, so pixels lie in [-1, 1]."""
        return (images.float() / self.peak).sub_(0.5).div_(0.5)  # [B, C, H, W]

    def gather(self, split: Split, index: Tensor) -> tuple[Tensor, Tensor]:
        """The samples of a split at `index` [A, B]: images, normalised, [A, B, C, H, W], and labels [A, B]."""
        if by_kernels(index) and split.images.is_contiguous():
            return gather_triton(split.images, split.labels, index, self.peak)
        return self.normalise(split.images[index]), split.labels[index]


datasets: Registry[Callable[..., Dataset]] = Registry("dataset")


def check_split(name: str, split: Split, classes: int) -> None:
    images, labels = split.images, split.labels
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise DataError(f"{name} images have shape {tuple(images.shape)}; [n, channels, height, width] is needed")
    if images.dtype not in (torch.uint8, torch.float32):
        raise DataError(f"{name} images are {images.dtype}; uint8 or float32 is needed")
    if labels.ndim != 1 or labels.dtype != torch.int64:
        raise DataError(f"{name} labels are {labels.dtype} of shape {tuple(labels.shape)}; int64 [n] is needed")
    if len(images) != len(labels):
        raise DataError(f"{name} has {len(images)} images but {len(labels)} labels")
    if not len(labels):
        raise DataError(f"{name} has no samples")
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise DataError(f"{name} has labels from {lowest} to {highest}, but {classes} classes are 0 to {classes - 1}")
    if images.is_floating_point() and not bool(torch.isfinite(images).all()):
        raise DataError(f"{name} images have pixels that are NaN or infinite")
