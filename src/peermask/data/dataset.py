"""A dataset: inputs and targets for training and for testing, checked once when made.

A dataset a config can choose is one file with one function, registered in `datasets`, whose keyword-only
parameters are its options. Handing samples to agents is in partition.py and local.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from peermask.data.normalisation import Normalisation, Normalise, Range, Statistics
from peermask.errors import DataError, nearest
from peermask.kernels import by_kernels
from peermask.registry import Registry
from peermask.task import Task as Task

TASKS: tuple[Task, ...] = get_args(Task)
DTYPES = (torch.uint8, torch.float32, torch.int64)


@dataclass(frozen=True, eq=False)
class Split:
    inputs: Tensor  # [n, ...] uint8 or float32 numbers, or int64 tokens
    targets: Tensor  # labels [n] int64; of several labels [n, K] float32, 0 or 1; of a regression [n, K] float32
    agents: Tensor | None = None  # [n] int64: the agent of a sample, if the data says so

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        """Show sizes, not every sample."""
        return f"Split({len(self)} samples, inputs of {self.inputs.dtype} {tuple(self.inputs.shape[1:])})"


@dataclass(frozen=True, eq=False)
class Dataset:
    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]  # names of the labels; of a regression, of its outputs
    normalisation: Normalisation = None
    task: Task = "classification"
    vocabulary: int | None = None  # token ids are below it; None: inputs are numbers
    target_scale: Statistics | None = None  # of a regression's training targets: the network gives (y - mean) / std

    def __post_init__(self) -> None:
        if not self.classes:
            raise DataError(f"{self.name} has no classes")
        if self.task not in TASKS:
            raise DataError(f"{self.name} has task {self.task!r}; {nearest(str(self.task), TASKS)}")
        for part, split in (("train", self.train), ("test", self.test)):
            check_split(f"{self.name} {part}", split, self)
        for what, one, other in (
            ("shape", tuple(self.train.inputs.shape[1:]), tuple(self.test.inputs.shape[1:])),
            ("type", self.train.inputs.dtype, self.test.inputs.dtype),
        ):
            if one != other:
                raise DataError(f"{self.name} has train inputs of {what} {one} but test inputs of {other}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: F features, C x T, C x H x W, or T tokens."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def blank(self) -> Tensor:
        """One normalised input of zeros, to try a module on."""
        return torch.zeros(1, *self.shape, dtype=torch.float32 if self.vocabulary is None else torch.int64)

    @property
    def has_labels(self) -> bool:
        """Whether a sample has one label, by which partitions and readouts can go."""
        return self.task == "classification"

    @cached_property
    def fingerprint(self) -> str:
        """sha256 in hex over inputs, targets, class names and all else it says: equal ones are the same data."""
        digest = hashlib.sha256("\n".join(self.classes).encode())
        for tensor in (self.train.inputs, self.train.targets, self.test.inputs, self.test.targets):
            digest.update(f"\n{tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
        pixels = isinstance(self.normalisation, Range) and self.normalisation.low == 0
        if not pixels or self.task != "classification":
            digest.update(f"\n{self.task} {self.vocabulary} {self.normalisation!r} {self.target_scale!r}".encode())
        for split in (self.train, self.test):
            if split.agents is not None:
                digest.update(np.ascontiguousarray(split.agents.cpu().numpy()).data)
        return digest.hexdigest()

    def normalise(self, inputs: Tensor) -> Tensor:
        """Normalise raw inputs [..., *shape] to float32; tokens are left unchanged."""
        normalised: Tensor = self._normaliser(inputs)
        return normalised

    @cached_property
    def _normaliser(self) -> Normalise:
        return Normalise(self.normalisation, len(self.shape)).to(self.train.inputs.device)

    @cached_property
    def _target_scale(self) -> tuple[Tensor, Tensor]:
        assert self.target_scale is not None
        device = self.train.inputs.device
        return torch.tensor(self.target_scale.mean, device=device), torch.tensor(self.target_scale.std, device=device)

    def scale_targets(self, targets: Tensor) -> Tensor:
        """(y - mean) / std of a regression's targets, which is what its network is to give."""
        if self.target_scale is None:
            return targets
        mean, std = self._target_scale
        return (targets - mean) / std

    def unscale(self, outputs: Tensor) -> Tensor:
        """A regression's outputs in the units of its targets."""
        if self.target_scale is None:
            return outputs
        mean, std = self._target_scale
        return outputs * std + mean

    def gather(self, split: Split, index: Tensor) -> tuple[Tensor, Tensor]:
        """The samples of a split at `index` [A, B]: inputs as a network sees them [A, B, ...], and targets."""
        peak = self._peak
        if peak and split.inputs.dim() == 4 and by_kernels(index) and split.inputs.is_contiguous():
            return gather_triton(split.inputs, split.targets, index, peak)
        return self.normalise(split.inputs[index]), self.scale_targets(split.targets[index])

    @cached_property
    def _peak(self) -> float:
        """The pixel value that stands for 1 in labelled images, which a kernel gathers; 0 for anything else."""
        how = self.normalisation
        return how.high if isinstance(how, Range) and how.low == 0 and self.has_labels else 0.0


datasets: Registry[Callable[..., Dataset]] = Registry("dataset")


def check_split(name: str, split: Split, about: Dataset) -> None:
    inputs, targets = split.inputs, split.targets
    if inputs.ndim < 2 or 0 in inputs.shape[1:]:
        raise DataError(f"{name} inputs have shape {tuple(inputs.shape)}; [n, ...] is needed")
    if inputs.dtype not in DTYPES:
        raise DataError(f"{name} inputs are {inputs.dtype}; uint8, float32 or, for tokens, int64 is needed")
    if (inputs.dtype == torch.int64) != (about.vocabulary is not None):
        raise DataError(f"{name} inputs are {inputs.dtype}; tokens are int64 and have a vocabulary, numbers neither")
    if len(inputs) != len(targets):
        raise DataError(f"{name} has {len(inputs)} inputs but {len(targets)} targets")
    if not len(targets):
        raise DataError(f"{name} has no samples")
    _check_targets(name, targets, about)
    if inputs.is_floating_point():
        check_finite(inputs, f"{name} input")
    if about.vocabulary is not None:
        _check_tokens(name, inputs, about.vocabulary)
    if split.agents is not None and split.agents.shape != (len(targets),):
        raise DataError(f"{name} has {len(targets)} samples but agents of shape {tuple(split.agents.shape)}")


def _check_targets(name: str, targets: Tensor, about: Dataset) -> None:
    outputs = len(about.classes)
    if about.task == "classification":
        if targets.ndim != 1 or targets.dtype != torch.int64:
            raise DataError(f"{name} labels are {targets.dtype} of shape {tuple(targets.shape)}; int64 [n] is needed")
        lowest, highest = int(targets.min()), int(targets.max())
        if lowest < 0 or highest >= outputs:
            raise DataError(
                f"{name} has labels from {lowest} to {highest}, but {outputs} classes are 0 to {outputs - 1}"
            )
        return
    if targets.shape[1:] != (outputs,) or targets.dtype != torch.float32:
        raise DataError(
            f"{name} targets are {targets.dtype} of shape {tuple(targets.shape)}; "
            f"{about.task} with {outputs} outputs needs float32 [n, {outputs}]"
        )
    check_finite(targets, f"{name} target")
    if about.task == "multi-label" and not bool(((targets == 0) | (targets == 1)).all()):
        raise DataError(
            f"{name} targets go from {targets.min():g} to {targets.max():g}; several labels are 0 or 1 each"
        )


def check_finite(values: Tensor, name: str) -> None:
    """Raise an error that names the first NaN or infinite number."""
    if not bool(torch.isfinite(values).all()):
        row, *place = (~torch.isfinite(values)).nonzero()[0].tolist()
        value = float(values[(row, *place)])
        raise DataError(
            f"{name} is {value} in sample {row} at {place}; remove or replace values that are NaN or infinite"
        )


def _check_tokens(name: str, tokens: Tensor, vocabulary: int) -> None:
    outside = (tokens < 0) | (tokens >= vocabulary)
    if bool(outside.any()):
        row, *place = outside.nonzero()[0].tolist()
        raise DataError(
            f"{name} has token {int(tokens[(row, *place)])} in sample {row} at {place}; "
            f"a vocabulary of {vocabulary} has 0 to {vocabulary - 1}"
        )


# On a GPU, by kernels

_BLOCK = 1024  # entries of an image at once


def gather_triton(images: Tensor, labels: Tensor, index: Tensor, peak: float) -> tuple[Tensor, Tensor]:
    """(x / peak - 0.5) / 0.5 of images [n, C, H, W] at `index` [A, B], and their labels: [A, B, C, H, W], [A, B].

    Channels lie last in memory, where convolutions want them.
    """
    from peermask.kernels.batches_triton import gather_kernel

    channels, height, width = images.shape[1:]
    pixels = height * width
    out = torch.empty(*index.shape, height, width, channels, device=images.device)
    picked = torch.empty(index.shape, dtype=labels.dtype, device=images.device)
    grid = (index.numel(), -(-pixels * channels // _BLOCK))
    gather_kernel[grid](images, labels, index.contiguous(), out, picked, peak, pixels, channels, _BLOCK)
    return out.permute(0, 1, 4, 2, 3), picked
