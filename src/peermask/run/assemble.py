"""An experiment on a device: its algorithm, data and simulator, and how many agents are computed at once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from peermask.algorithms.contract import Agents, Algorithm, Setting, make_algorithm
from peermask.algorithms.message import HalfPrecision
from peermask.compute.device import check_room
from peermask.compute.network import Network
from peermask.data.batches import Augmentation
from peermask.data.dataset import Dataset, Split
from peermask.data.normalisation import FromRaw
from peermask.graph import Mixing
from peermask.masks.masker import Masker
from peermask.models.layout import Layout
from peermask.models.outputs import Readout, with_readout
from peermask.run.build import Experiment
from peermask.run.feed import Feed
from peermask.run.metrics import SAMPLES_AT_ONCE
from peermask.run.simulator import Simulator
from peermask.run.warmup import compile_kernels
from peermask.wire.schema import Payload

STATE_COPIES = 8  # float32 vectors of P an agent needs at the peak of a round: scores, gradients, model, sort keys
RESTING_BYTES = (
    12  # bytes per parameter that an agent holds while others are computed: its state, its last two messages
)
FUSED_FACTOR = 2  # memory of a pass through fused kernels, in sizes of all outputs; measured on AlexNet: 1.2
GENERAL_FACTOR = 5  # memory of any other pass, which stores a module's inner results too; on AlexNet: 4.4


def assemble(experiment: Experiment, device: torch.device) -> tuple[Algorithm[Any], Feed]:
    """The algorithm of an experiment and the data of all its agents, on the device that computes."""
    config = experiment.config
    dataset = replace(
        experiment.dataset, train=_moved(experiment.dataset.train, device), test=_moved(experiment.dataset.test, device)
    )
    network = replace(experiment.network, module=copy.deepcopy(experiment.network.module).to(device))
    augmentation = Augmentation(config.data.flip, config.data.crop)
    ids = experiment.agents.ids
    feed = Feed(
        dataset,
        experiment.samples,
        ids,
        config.batch_size,
        config.seed,
        augmentation,
        network,
        experiment.readout,
        experiment.further_metrics,
    )
    return algorithm_on(experiment, network, device), feed


def openings(experiment: Experiment, agents: Agents) -> Payload:
    """Openings: what agents count as having sent before their first message, [A, ...] on the CPU; may be empty."""
    return algorithm_on(experiment, experiment.network, torch.device("cpu")).opening(agents)


def algorithm_on(experiment: Experiment, network: Network, device: torch.device) -> Algorithm[Any]:
    config, frozen = experiment.config, experiment.frozen
    masker = Masker(network.layout, frozen.values.to(device), config.mask, frozen.given)
    first = experiment.retentions[: config.agents]  # of agents that were there from the beginning
    setting = Setting(network, masker, config.seed, first, experiment.schedule.changes)
    algorithm = make_algorithm(config.algorithm.name, config.algorithm.options, setting)
    half = config.exchange is not None and config.exchange.values == "float16"
    return cast(Algorithm[Any], HalfPrecision(algorithm)) if half else algorithm


def build_simulator(
    experiment: Experiment,
    device: torch.device,
    chunk: int | None = None,
    workers: int | None = None,
    rows: slice = slice(None),
) -> Simulator:
    """All agents of an experiment on one device, or some of them."""
    if device.type == "cpu":
        count, total = len(range(experiment.config.agents)[rows]), experiment.network.layout.total
        check_room(4 * count * total, f"{count} agents of {total:,} parameters take", "use fewer, or a smaller model")
    algorithm, feed = assemble(experiment, device)
    compile_kernels(feed.network, experiment.dataset.shape, experiment.config.batch_size, device)
    chunk = chunk or agents_at_once(experiment, device)
    agents, mixing = experiment.agents.rows(rows), experiment.mixing.rows(rows)
    schedule = experiment.schedule

    @lru_cache(maxsize=1)
    def mixing_since(round: int) -> Mixing:
        return experiment.mixing_of(round).rows(rows)

    changing = (lambda number: mixing_since(schedule.since(number))) if schedule.changes else None
    return Simulator(algorithm, agents, feed.rows(rows), mixing, chunk, workers, changing)


def agents_at_once(experiment: Experiment, device: torch.device, agents: int | None = None, sharing: int = 1) -> int:
    """Count agents to compute at once: one on a CPU; as many as fit on a GPU that `sharing` processes use."""
    if device.type == "cpu":
        return 1
    free, _ = torch.cuda.mem_get_info(device)
    config, blank = experiment.config, experiment.dataset.blank
    activations = activation_bytes(experiment.network.module, blank, config.batch_size, fused=is_fused(experiment))
    return chunk_that_fits(agents or config.agents, experiment.network.layout, activations, free // sharing)


def is_fused(experiment: Experiment) -> bool:
    """Whether a GPU would compute gradients by the kernels."""
    network = experiment.network
    batch = max(experiment.config.batch_size, SAMPLES_AT_ONCE)
    return network.stack is not None and network.stack.fits_kernels(network.layout, experiment.dataset.shape, batch)


def chunk_that_fits(agents: int, layout: Layout, activations: int, free: int) -> int:
    """Choose how many agents to stack, as evenly as possible; an agent's passes need `activations` bytes."""
    each = STATE_COPIES * 4 * layout.total + activations
    room = int(0.8 * free) - RESTING_BYTES * layout.total * agents
    most = max(1, min(agents, room // each))
    chunks = -(-agents // most)
    return -(-agents // chunks)


def activation_bytes(module: torch.nn.Module, blank: torch.Tensor, batch: int, *, fused: bool) -> int:
    """Bytes that an agent's training step saves for its backward pass, or its evaluation's widest layer if larger.

    The module is tried on one input, `blank`, on the CPU.
    """
    outputs = [0]

    def count(_module: torch.nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, torch.Tensor):
            outputs.append(output.numel() * output.element_size())

    hooks = [child.register_forward_hook(count) for child in module.modules() if not list(child.children())]
    try:
        with torch.no_grad():
            module(blank)
    finally:
        for hook in hooks:
            hook.remove()
    return (FUSED_FACTOR if fused else GENERAL_FACTOR) * max(batch * sum(outputs), SAMPLES_AT_ONCE * max(outputs))


def _moved(split: Split, device: torch.device) -> Split:
    return replace(split, inputs=split.inputs.to(device), targets=split.targets.to(device))


def personal_models(
    experiment: Experiment, states: dict[str, Tensor], readout: Readout, labels: Sequence[Sequence[int]]
) -> list[nn.Module]:
    """Every agent's network, from the states of all agents in a checkpoint; `labels` are each agent's own."""
    simulator = build_simulator(experiment, torch.device("cpu"))
    simulator.restore(states)
    module, layout = experiment.network.module, experiment.network.layout
    return [
        answering(with_params(copy.deepcopy(module), layout, params), experiment.dataset, readout, own)
        for own, params in zip(labels, simulator.local_models(), strict=True)
    ]


def with_params(module: nn.Module, layout: Layout, params: Tensor) -> nn.Module:
    """Put a flat vector [P] into a module, for inference."""
    views = {name: view.clone() for name, view in layout.unflatten(params).items()}
    module.load_state_dict(views, strict=False, assign=True)
    return module.requires_grad_(False).eval()


def answering(network: nn.Module, dataset: Dataset, readout: Readout, labels: Sequence[int]) -> nn.Module:
    """A personal network as it is used: from raw inputs, by its agent's readout."""
    own = with_readout(network, readout, labels, len(dataset.classes))
    return FromRaw(own, dataset.normalisation, len(dataset.shape), dataset.target_scale).train(network.training)
