"""The network of an experiment, as a module: the config's, or the one that is given."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from peermask.data.dataset import Dataset
from peermask.engine.memory import check_room
from peermask.errors import ModelError
from peermask.experiment.config import ExperimentConfig
from peermask.models.architectures import models
from peermask.models.network import by

BUILDING_BYTES = 16  # of each parameter, while a network is built: itself, its frozen value, and that as it is drawn
LARGE = 2**24  # weights of a network whose size is looked at before it is built


def make_module(config: ExperimentConfig, dataset: Dataset, module: nn.Module | None) -> nn.Module:
    if module is not None:
        return copy.deepcopy(module)  # it will be frozen; the caller's is not changed
    name, options = config.model.name, model_options(config, dataset)
    make = partial(models[name].make, dataset.shape, len(dataset.classes), **options)
    if _may_be_large(options):
        count = _parameters(make)
        asks = f"model.name = {name!r} has {count:,} parameters, which take"
        check_room(BUILDING_BYTES * count, asks, "make it smaller")
    try:
        return make()
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"model.name = {name!r} does not fit the {by(dataset.shape)} {_what(dataset)} of {dataset.name}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def model_options(config: ExperimentConfig, dataset: Dataset) -> dict[str, Any]:
    """Of the config's model; a vocabulary that is left out is the data's."""
    options = dict(config.model.options)
    if "vocabulary" in options and options["vocabulary"] is None:
        options["vocabulary"] = dataset.vocabulary
    return options


def _what(dataset: Dataset) -> str:
    return "tokens" if dataset.vocabulary is not None else "images" if len(dataset.shape) == 3 else "inputs"


def _may_be_large(options: Mapping[str, Any]) -> bool:
    """Whether widths are such that layers between them could have millions of weights.

    A trial without memory makes torch import its compiler: two seconds and 150 MB, for nothing where all is small.
    """
    values = [value for given in options.values() for value in (given if isinstance(given, list | tuple) else [given])]
    return sum(value for value in values if isinstance(value, int)) ** 2 > LARGE


def _parameters(make: Callable[[], nn.Module]) -> int:
    """Of a network that is not built; 0 if unknown: building it then reports what is wrong."""
    try:
        with torch.device("meta"):  # shapes only
            return sum(parameter.numel() for parameter in make().parameters())
    except (RuntimeError, ValueError):
        return 0
