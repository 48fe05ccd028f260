"""Normalisation: how raw inputs become what a network sees, and its outputs become numbers in a target's own units.

It belongs to the dataset, is kept in the run and goes into every export, so that a personal model takes raw inputs.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from peermask.errors import DataError
from peermask.registry import Options

SMALLEST = 1e-24  # deviation; a smaller one is taken for rounding
LARGEST = 1e30  # mean or deviation; its square must fit a float64, and a float32 its products
Mean = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Deviation = Annotated[float, Field(gt=0, le=LARGEST)]


class Range(Options):
    """A fixed range, carried to [-1, 1]."""

    low: float = Field(0.0, description="what becomes -1")
    high: float = Field(description="what becomes 1")

    @model_validator(mode="after")
    def _is_range(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low is {self.low:g} and high is {self.high:g}; high must be above low")
        return self


class Statistics(Options):
    """Mean and standard deviation, one for all or one for each feature or channel."""

    mean: tuple[Mean, ...] = Field(min_length=1, description="one, or one for each feature or channel")
    std: tuple[Deviation, ...] = Field(min_length=1, description="likewise")

    @model_validator(mode="after")
    def _as_many(self) -> Statistics:
        if len(self.mean) != len(self.std):
            raise ValueError(f"mean has {len(self.mean)} numbers and std {len(self.std)}; give as many of each")
        return self


Normalisation: TypeAlias = Range | Statistics | None  # None: inputs are what a network sees
Wish: TypeAlias = Literal["none", "statistics"] | Range | Statistics  # what a config may say


def statistics_of(x: Tensor, name: str = "values") -> Statistics:
    """Measure each feature or channel of [n, C, ...], in float64; a constant one keeps its scale."""
    flat = x.transpose(0, 1).flatten(1).double()  # [C, n * ...]
    mean = flat.mean(1)
    std = (flat - mean[:, None]).square().mean(1).sqrt()
    return statistics(mean, std, name)


def statistics(mean: Tensor, std: Tensor, name: str = "values") -> Statistics:
    """Return statistics of float64 means and deviations [C]."""
    largest = float(torch.cat([mean.abs(), std]).max())
    if not largest <= LARGEST:
        raise DataError(f"{name} has a mean or deviation of {largest:.3g}; rescale them to below {LARGEST:g}")
    if (tiny := (std > 1e-12 * mean.abs()) & (std <= SMALLEST)).any():
        raise DataError(f"{name} has a deviation of {float(std[tiny][0]):.3g}; rescale them to above {SMALLEST:g}")
    constant = std <= 1e-12 * mean.abs().clamp(min=1e-12)
    return Statistics(mean=_digits(mean), std=_digits(std.masked_fill(constant, 1.0)))


def _digits(values: Tensor) -> tuple[float, ...]:
    """Round to float32: shorter in a file, and the same wherever they are read."""
    return tuple(float(str(value)) for value in values.numpy().astype(np.float32))


def resolve(wish: Wish | None, x: Tensor, default: Wish, name: str) -> Normalisation:
    """Resolve the requested normalisation, or the default, with statistics of x [n, C, ...]."""
    chosen = default if wish is None else wish
    if chosen == "none":
        return None
    if chosen == "statistics":
        return statistics_of(x, f"{name} x_train")
    assert not isinstance(chosen, str)
    if isinstance(chosen, Statistics) and len(chosen.mean) not in (1, x.shape[1]):
        raise DataError(
            f"{name} normalise has {len(chosen.mean)} means, but there are {x.shape[1]} features or channels; "
            "give one for all or one for each"
        )
    return chosen


class Normalise(nn.Module):
    """Raw inputs [..., *shape] to float32; tokens are left unchanged."""

    mean: Tensor
    std: Tensor

    def __init__(self, how: Normalisation, dimensions: int) -> None:
        super().__init__()
        self.how = how
        if isinstance(how, Statistics):
            aside = (1,) * (dimensions - 1)
            self.register_buffer("mean", torch.tensor(how.mean, dtype=torch.float32).view(-1, *aside))  # [C, 1, ...]
            self.register_buffer("std", torch.tensor(how.std, dtype=torch.float32).view(-1, *aside))

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.int64:
            return x
        match self.how:
            case Range():
                # (x / peak - 0.5) / 0.5, where the lowest is 0
                above = x.float() - self.how.low if self.how.low else x.float()
                return (above / (self.how.high - self.how.low)).sub_(0.5).div_(0.5)
            case Statistics():
                return (x.float() - self.mean) / self.std
        return x.float()


class FromRaw(nn.Module):
    """A network that takes raw inputs, and of a regression gives values in the targets' own units."""

    mean: Tensor  # [O]
    std: Tensor

    def __init__(self, network: nn.Module, how: Normalisation, dimensions: int, targets: Statistics | None) -> None:
        super().__init__()
        self.normalise = Normalise(how, dimensions)
        self.network = network
        self.scaled = targets is not None
        if targets is not None:
            self.register_buffer("mean", torch.tensor(targets.mean, dtype=torch.float32))
            self.register_buffer("std", torch.tensor(targets.std, dtype=torch.float32))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.network(self.normalise(inputs))
        return outputs * self.std + self.mean if self.scaled else outputs
