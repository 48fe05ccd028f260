"""Parts of a run, from a config. Every mistake in a config is reported here, before any work."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from peermask.algorithms import algorithms
from peermask.algorithms.contract import Agents, messages_sent
from peermask.algorithms.liars import pick_liars
from peermask.compute.device import check_room
from peermask.compute.network import Network, build_network, by
from peermask.config.experiment import ExperimentConfig
from peermask.config.sections import FrozenOptions
from peermask.data import datasets
from peermask.data.dataset import Dataset
from peermask.data.local import MEANINGS, AllSamples, share_meanings, share_out
from peermask.errors import ConfigError, DataError, ModelError
from peermask.graph import Base, Mixing, Schedule, build_mixing
from peermask.masks.masker import kept_counts, retentions
from peermask.models.architectures import models
from peermask.models.frozen import FrozenWeights, frozen_weights, own_weights
from peermask.models.layout import Layout, turn_off_dropout
from peermask.models.outputs import DEFAULT as DEFAULT_LOSS
from peermask.models.outputs import Loss, Readout, cross_entropy, losses
from peermask.models.pretrained import fold_batch_norms, put_weights, read_weights

LOW_RETENTION = 0.5  # retention of given weights below which a note advises more
LINK_BYTES = 400  # of each link, while a graph and its mixing are built; measured: 370


@dataclass(frozen=True)
class Experiment:
    """The parts of a run that a config describes, on the CPU."""

    config: ExperimentConfig
    schedule: Schedule
    mixing: Mixing  # in the first round
    dataset: Dataset
    samples: AllSamples
    network: Network
    frozen: FrozenWeights
    agents: Agents
    liars: tuple[int, ...] = ()  # agents that send lies
    notes: tuple[str, ...] = ()  # messages for the user

    @property
    def further_metrics(self) -> tuple[str, ...]:
        """Metrics of the config beside those of the task."""
        return () if self.config.task is None else self.config.task.metrics

    @property
    def readout(self) -> Readout:
        """The readout that counts."""
        return self.config.readout_for(self.dataset.task)

    @property
    def retentions(self) -> tuple[float, ...]:
        return tuple(round(r, 6) for r in self.agents.retention.tolist())

    @property
    def links(self) -> list[int]:
        """Directed links out of each agent; where the graph changes, in the first round."""
        sent: list[int] = self.mixing.links.out_degree.tolist()
        return sent

    def mixing_of(self, round: int) -> Mixing:
        """Mixing of all agents in a round."""
        if not self.schedule.changes:
            return self.mixing
        return build_mixing(self.schedule.links(round), self.samples.sizes)

    @property
    def messages_sent(self) -> list[int]:
        """Messages of each agent in a round."""
        return messages_sent(self.config.algorithm.name, self.links)


def build(config: ExperimentConfig, dataset: Dataset | None = None, module: nn.Module | None = None) -> Experiment:
    """Build a config's parts; a dataset or module passed here replaces the config's."""
    check_given(dataset, module)
    schedule = _schedule(config)
    ratios = retentions(config.retention, config.agents, config.seed)
    dataset, samples = share_data(config, dataset)
    config.readout_for(dataset.task)  # which may be refused
    if (config.data.flip or config.data.crop) and len(dataset.shape) != 3:
        raise ConfigError("data.flip and data.crop are for images, and these inputs are not; remove them")
    network_module, given, notes = with_weights(make_module(config, dataset, module), config, given=module is not None)
    network = build_network(
        network_module,
        dataset.shape,
        len(dataset.classes),
        config.mask.layers,
        _loss(config, dataset),
        tokens=dataset.vocabulary is not None,
    )
    if module is not None:
        notes = (name_values(network.layout, config), *notes)
    if config.frozen.source is not None and min(ratios) < LOW_RETENTION:
        line = f"retention {min(ratios):g} removes most of the given weights, and what they have learned; "
        notes = (*notes, line + "0.9 with mask.fc_keep = 0.5 was better on digits (docs/data.md)")
    return Experiment(
        config=config,
        schedule=schedule,
        mixing=build_mixing(schedule.links(1), samples.sizes),
        dataset=dataset,
        samples=samples,
        network=network,
        frozen=freeze(network, config, dataset, given=given),
        agents=agents_with(ratios, network, config),
        liars=() if config.liars is None else pick_liars(config.liars, config.agents, config.seed),
        notes=notes,
    )


def agents_with(retentions: tuple[float, ...], network: Network, config: ExperimentConfig) -> Agents:
    """Agents with these retentions; those of the config come first, and others may have joined them."""
    ratios = retentions
    if algorithms[config.algorithm.name].make.common_retention:
        ratios = (min(retentions[: config.agents]),) * len(retentions)
    counts = kept_counts(network.layout, ratios, config.mask)
    return Agents(tuple(range(len(retentions))), counts, torch.tensor(retentions))


def share_data(config: ExperimentConfig, dataset: Dataset | None) -> tuple[Dataset, AllSamples]:
    """Make the config's dataset, unless one is given, and divide it among the agents."""
    if dataset is None:
        dataset = datasets[config.dataset.name].make(**dict(config.dataset.options))
    name, options, data = config.partition.name, config.partition.options, config.data
    if name == MEANINGS:
        return share_meanings(dataset, options, config.agents, config.seed, data.fraction, data.validation)
    return dataset, share_out(dataset, name, options, config.agents, config.seed, data.fraction, data.validation)


def _schedule(config: ExperimentConfig) -> Schedule:
    """Make the schedule of links, and its first graph at once, so that errors show early."""
    base, choice = Base(config.graph.name, config.graph.options, config.agents, config.seed), config.schedule
    if choice is not None and algorithms[config.algorithm.name].make.hears_all:
        raise ConfigError(f"schedule: agents of {config.algorithm.name} use a server, not links; delete it")
    schedule = Schedule(base) if choice is None else Schedule(base, choice.name, choice.options)
    links = schedule.expected_links
    check_room(LINK_BYTES * links, f"agents = {config.agents}: about {links:,} links take", "use fewer of either")
    schedule.links(1)
    return schedule


def _loss(config: ExperimentConfig, dataset: Dataset) -> Loss:
    """Loss that a config names, tried on two samples, or that of the task."""
    if config.task is None or config.task.loss is None:
        return losses[DEFAULT_LOSS[dataset.task]].make
    loss = losses[config.task.loss].make
    targets = dataset.scale_targets(dataset.train.targets[:2])
    try:
        shape = tuple(loss(torch.zeros(len(targets), len(dataset.classes)), targets).shape)
        why = f"it gives {shape} for {len(targets)} samples" if shape != (len(targets),) else ""
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        why = str(error).splitlines()[0]
    if loss is cross_entropy and not dataset.has_labels:
        why = "it takes one label a sample"  # it would take numbers for probabilities
    if why:
        raise ConfigError(f"task.loss = {config.task.loss!r} does not fit {dataset.task}: {why}")
    return loss


def check_given(dataset: object, module: object) -> None:
    """Refuse what is no dataset or module."""
    if isinstance(dataset, DataLoader):
        raise DataError("dataset is a DataLoader; give what it loads: peermask.from_torch(train.dataset, test.dataset)")
    if dataset is not None and not isinstance(dataset, Dataset):
        kind = type(dataset).__name__
        raise DataError(f"dataset has type {kind}; make one of it with peermask.from_arrays or peermask.from_torch")
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise ModelError(f"module is the class {module.__name__}; give an instance: {module.__name__}()")
    if module is not None and not isinstance(module, nn.Module):
        raise ModelError(f"module has type {type(module).__name__}; give a torch.nn.Module")


# The network: its module, and weights that the config names as frozen.

MODULE = "module"  # of `frozen.from`
BUILDING_BYTES = 16  # of each parameter, while a network is built: itself, its frozen value, and that as it is drawn
LARGE_WEIGHTS = 2**24  # weights of a network whose size is looked at before it is built
MOST_NAMES = 4  # parameters of a kind that a line names; of more it gives the number


def make_module(config: ExperimentConfig, dataset: Dataset, module: nn.Module | None) -> nn.Module:
    if module is not None:
        return copy.deepcopy(module)  # it will be frozen; the caller's is not changed
    name, options = config.model.name, model_options(config, dataset)
    make = partial(models[name].make, dataset.shape, len(dataset.classes), **options)
    try:
        if _may_be_large(options):
            with torch.device("meta"):  # shapes only
                count = sum(parameter.numel() for parameter in make().parameters())
            asks = f"model.name = {name!r} has {count:,} parameters, which take"
            check_room(BUILDING_BYTES * count, asks, "make it smaller")
        return make()
    except (RuntimeError, ValueError) as error:
        what = "tokens" if dataset.vocabulary is not None else "images" if len(dataset.shape) == 3 else "inputs"
        raise ModelError(
            f"model.name = {name!r} does not fit the {by(dataset.shape)} {what} of {dataset.name}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def model_options(config: ExperimentConfig, dataset: Dataset) -> dict[str, Any]:
    """Options of the config's model; a missing vocabulary is the data's."""
    options = dict(config.model.options)
    if "vocabulary" in options and options["vocabulary"] is None:
        options["vocabulary"] = dataset.vocabulary
    return options


def _may_be_large(options: Mapping[str, Any]) -> bool:
    """Whether widths are such that layers between them could have millions of weights.

    A trial without memory makes torch import its compiler: two seconds and 150 MB, for nothing where all is small.
    """
    lists = (value if isinstance(value, list | tuple) else [value] for value in options.values())
    return sum(width for widths in lists for width in widths if isinstance(width, int)) ** 2 > LARGE_WEIGHTS


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
    norms = fold_batch_norms(module)
    counts = {
        "batch norms folded into the layer before": norms["folded"],
        "batch norms replaced by a fixed factor and summand for each channel": norms["alone"],
        "dropouts turned off": turn_off_dropout(module),
    }
    return module, [f"{what}: {count}" for what, count in counts.items() if count]


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
