"""The network of an experiment: its module, and weights that the config names as frozen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from peermask.compute.device import check_room
from peermask.compute.network import Network, by
from peermask.config.experiment import ExperimentConfig
from peermask.config.sections import FrozenOptions
from peermask.data.dataset import Dataset
from peermask.errors import ConfigError, ModelError
from peermask.models.architectures import models
from peermask.models.frozen import FrozenWeights, frozen_weights, own_weights
from peermask.models.layout import Layout, turn_off_dropout
from peermask.models.pretrained import fold_batch_norms, put_weights, read_weights

BUILDING_BYTES = 16  # of each parameter, while a network is built: itself, its frozen value, and that as it is drawn
LARGE_WEIGHTS = 2**24  # weights of a network whose size is looked at before it is built


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
    """Options of the config's model; a missing vocabulary is the data's."""
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
    return sum(value for value in values if isinstance(value, int)) ** 2 > LARGE_WEIGHTS


def _parameters(make: Callable[[], nn.Module]) -> int:
    """Count the parameters of a network without building it; 0 if unknown: building it then reports the error."""
    try:
        with torch.device("meta"):  # shapes only
            return sum(parameter.numel() for parameter in make().parameters())
    except (RuntimeError, ValueError):
        return 0


MODULE = "module"


def with_weights(
    module: nn.Module, config: ExperimentConfig, *, given: bool
) -> tuple[nn.Module, bool, tuple[str, ...]]:
    """Load the weights that a config names: the module, whether its weights are frozen unchanged, and notes."""
    frozen = config.frozen
    if frozen.source is None:
        if frozen.drawn is not None:
            raise ConfigError("frozen.drawn is for given weights only; set frozen.from, or delete it")
        return module, False, ()
    prepared, notes = prepare(module, frozen.source, frozen.drawn or (), given=given)
    if frozen.init != FrozenOptions().init and not frozen.drawn:
        notes.append(f"frozen.from = {frozen.source!r} is used; frozen.init = {frozen.init!r} is not")
    return prepared, True, tuple(notes)


def prepare(module: nn.Module, source: str, drawn: Sequence[str] = (), *, given: bool) -> tuple[nn.Module, list[str]]:
    """Put the weights of a file into a module, unless they are its own; fold its batch norms, turn off its dropout."""
    if source != MODULE:
        put_weights(module, read_weights(Path(source)), f"frozen.from = {source!r}", drawn)
    elif not given:
        raise ConfigError(f"frozen.from = {MODULE!r} keeps the weights of a module given in Python, and none was given")
    notes = []
    norms = fold_batch_norms(module)
    if any(norms.values()):
        notes.append(
            f"{norms['folded']} batch norms were folded into the layers before them; "
            f"{norms['alone']} became a fixed factor and summand for each channel"
        )
    if count := turn_off_dropout(module):
        notes.append(f"{count} dropouts were turned off")
    return module, notes


MOST_NAMES = 4  # parameters of a kind that a line names; of more it gives the number


def name_values(layout: Layout, config: ExperimentConfig) -> str:
    """Say in one line which parameters of a module given in Python are masked, kept and replaced."""
    frozen = config.frozen
    fates: dict[str, list[str]] = {"masked": [layer.name for layer in layout.masked]}
    bias = "set to 0" if frozen.bias_init == "zero" else "drawn as torch does"
    fate_of = {"bias": bias, "norm-weight": "set to 1", "norm-bias": "set to 0", "other": "drawn with deviation 1"}
    for layer in layout.layers:
        fate = fate_of.get(layer.kind, f"drawn by frozen.init = {frozen.init!r}")
        if frozen.source is not None and not any(fnmatchcase(layer.name, one) for one in frozen.drawn or ()):
            fate = "kept"
        fates.setdefault(fate, []).append(layer.name)
    parts = [
        f"{fate}: {', '.join(names[:MOST_NAMES])}{f' and {len(names) - MOST_NAMES} more' * (len(names) > MOST_NAMES)}"
        for fate, names in fates.items()
    ]
    advice = f"; frozen.from = {MODULE!r} would keep the module's own values" if frozen.source is None else ""
    return f"module: {'; '.join(parts)}{advice}"


def freeze(network: Network, config: ExperimentConfig, dataset: Dataset, *, given: bool) -> FrozenWeights:
    """Make the frozen weights of a network: drawn, or the module's except those to draw."""
    frozen, how = config.frozen, (network.layout, config.frozen.init, config.frozen.bias_init, config.seed)
    regressed = len(dataset.classes) if dataset.task == "regression" else 0
    if not given:
        return frozen_weights(*how, regressed=regressed)
    return own_weights(network.module, *how, frozen.drawn or (), regressed=regressed)
