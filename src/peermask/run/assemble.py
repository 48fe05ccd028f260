"""An experiment on a device: its algorithm, data, simulator and warm-up, and how many agents are computed at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from threading import Thread
from typing import Any, cast

import torch
from torch import Tensor, nn

from peermask.algorithms.contract import Agents, Algorithm, Setting, algorithms
from peermask.algorithms.message import HalfPrecision, as_message
from peermask.compute.device import check_room, made_current
from peermask.compute.network import Network
from peermask.data.batches import Augmentation
from peermask.data.dataset import Dataset, Split, gather_triton
from peermask.data.normalisation import FromRaw
from peermask.graph import Mixing
from peermask.graph.links import Links
from peermask.graph.sums import FEW, count_votes
from peermask.masks.aggregation import add_own_votes, aggregated_magnitude, fine_tune, pull_scores
from peermask.masks.guard import believed_links
from peermask.masks.masker import Masker, MaskOptions
from peermask.masks.scores import step_scores
from peermask.masks.select import top_fraction_by_layer
from peermask.models.layout import Layout
from peermask.models.outputs import Readout, cross_entropy, with_readout
from peermask.run.build import Experiment
from peermask.run.feed import Feed
from peermask.run.metrics import SAMPLES_AT_ONCE, Tally
from peermask.run.simulator import Simulator, join_messages
from peermask.wire.cost import message_cost
from peermask.wire.schema import Payload

STATE_COPIES = 8  # float32 vectors of P an agent needs at the peak of a round: scores, gradients, model, sort keys
RESTING_BYTES = 12  # per parameter of an agent while others are computed: its state, its last two messages
FUSED_FACTOR = 2  # memory of a pass through fused kernels, in sizes of all outputs; measured on AlexNet: 1.2
GENERAL_FACTOR = 5  # memory of any other pass, which stores a module's inner results too; on AlexNet: 4.4


def assemble(experiment: Experiment, device: torch.device) -> tuple[Algorithm[Any], Feed]:
    """The algorithm of an experiment and the data of all its agents, on the device that computes."""
    config = experiment.config
    train, test = (_split_on(split, device) for split in (experiment.dataset.train, experiment.dataset.test))
    dataset = replace(experiment.dataset, train=train, test=test)
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
    algorithm = algorithms[config.algorithm.name].make(config.algorithm.options, setting)
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


def _split_on(split: Split, device: torch.device) -> Split:
    return replace(split, inputs=split.inputs.to(device), targets=split.targets.to(device))


def personal_models(
    experiment: Experiment, states: dict[str, Tensor], readout: Readout, labels: Sequence[Sequence[int]]
) -> list[nn.Module]:
    """Every agent's network, from the states of all agents in a checkpoint; `labels` are each agent's own."""
    simulator = build_simulator(experiment, torch.device("cpu"))
    simulator.restore(states)
    module, layout = experiment.network.module, experiment.network.layout
    return [
        with_readout_and_inputs(with_params(copy.deepcopy(module), layout, params), experiment.dataset, readout, own)
        for own, params in zip(labels, simulator.local_models(), strict=True)
    ]


def with_params(module: nn.Module, layout: Layout, params: Tensor) -> nn.Module:
    """Put a flat vector [P] into a module, for inference."""
    views = {name: view.clone() for name, view in layout.unflatten(params).items()}
    module.load_state_dict(views, strict=False, assign=True)
    return module.requires_grad_(False).eval()


def with_readout_and_inputs(network: nn.Module, dataset: Dataset, readout: Readout, labels: Sequence[int]) -> nn.Module:
    """A personal network as it is used: from raw inputs, by its agent's readout."""
    own = with_readout(network, readout, labels, len(dataset.classes))
    return FromRaw(own, dataset.normalisation, len(dataset.shape), dataset.target_scale).train(network.training)


# Warm-up of a GPU: kernels are compiled side by side; in turn they would take most of a short run's time.


def wake(device: torch.device) -> None:
    """Initialise a GPU in its own thread while the caller reads data. Errors are ignored: its first use raises them.

    PyTorch creates a context and loads its own kernels when they are first called; Triton hashes all its files.
    """
    if device.type == "cuda" and not torch.cuda.is_initialized():  # a sweep runs many experiments
        Thread(target=_wake, args=(device,)).start()


def _wake(device: torch.device) -> None:
    with suppress(Exception), made_current(device):
        rehearse(device)


def rehearse(device: torch.device) -> None:
    """Compute a loss, its gradient and an evaluation of two outputs, and launch a Triton kernel, to load their code."""
    _first_launch(device)
    labels = torch.zeros(1, 8, dtype=torch.int64, device=device)
    outputs = torch.zeros(1, 8, 2, device=device, requires_grad=True)
    cross_entropy(outputs.flatten(0, 1), labels.flatten()).sum().backward()
    tally = Tally(torch.ones(1, 2, device=device), "all")
    tally.add(outputs.detach() @ torch.eye(2, device=device), labels, labels == 0)
    tally.figures()


def _first_launch(device: torch.device) -> object:
    one = Links.of(torch.ones(1, 1, dtype=torch.bool, device=device))
    return count_votes(one, torch.zeros(1, 1024, dtype=torch.bool, device=device), torch.uint8)


def compile_kernels(network: Network, shape: tuple[int, ...], batch: int, device: torch.device) -> None:
    """Call every kernel once for a single agent, whose shapes per agent are those of all."""
    if device.type != "cuda":
        return
    with made_current(device):
        work = _of_masks(network.layout, device)
        if len(shape) == 3:
            work.append(lambda: _gather(shape, device))
        if network.stack is not None:
            work += network.stack.trials(network.layout, shape, batch, device)
        _first_launch(device)  # threads that begin together would each hash Triton's files
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(_on, device, trial) for trial in work]:
            done.result()
    torch.cuda.synchronize(device)


def _on(device: torch.device, trial: Callable[[], object]) -> None:
    with made_current(device):  # of this thread
        trial()


def _gather(shape: tuple[int, ...], device: torch.device) -> object:
    image = torch.zeros(1, *shape, dtype=torch.uint8, device=device)
    index = torch.zeros(1, 1, dtype=torch.int64, device=device)
    return gather_triton(image, index[0], index, 1.0)


def _count_twice(message: Payload, sizes: Sequence[int]) -> object:
    """Count a first message, and one that follows another."""
    _, known = message_cost(message, None, sizes)
    return message_cost(message, known, sizes)


def _steps(scores: Tensor, gradient: Tensor, weights: Tensor, layout: Layout) -> None:
    """Take steps with momentum and without, absolute and relative."""
    for velocity, momentum in ((None, 0.0), (scores, 0.5)):
        for relative in (False, True):
            step_scores(scores, gradient, weights, velocity, 1.0, momentum, 0.0, 0.0, layout, relative=relative)


def _of_masks(layout: Layout, device: torch.device) -> list[Callable[[], object]]:
    scores = torch.rand(1, layout.weights, device=device)
    votes = torch.zeros(1, layout.weights, dtype=torch.uint8, device=device)
    mask = votes.bool()
    keep = torch.tensor([layout.sizes], device=device)
    voters = torch.ones(1, dtype=torch.int64, device=device)
    masker = Masker(layout, torch.rand(layout.total, device=device), MaskOptions())
    gradient = torch.rand(1, layout.total, device=device)[:, : layout.weights]
    links = Links.of(torch.ones(FEW + 1, 1, dtype=torch.bool, device=device))
    one = Links.of(torch.ones(1, 1, dtype=torch.bool, device=device))
    values = as_message(torch.rand(1, layout.total, device=device), layout.weights)
    messages = (
        {"mask": mask},
        join_messages([values]),
    )  # which puts each leaf into memory of its own, as in a round
    return [
        lambda: masker.model(mask, keep),
        lambda: _steps(scores, gradient, masker.weights(keep), layout),
        lambda: top_fraction_by_layer(scores, keep, layout.sizes),
        lambda: aggregated_magnitude(scores, votes, voters, 1.0, layout),
        lambda: count_votes(one, mask, torch.uint8),
        lambda: count_votes(links, mask, torch.uint8),  # many agents are counted in larger tiles
        lambda: fine_tune(scores, scores, votes, voters, 1.0),
        lambda: add_own_votes(votes, voters, mask),
        lambda: pull_scores(scores, votes, voters, mask, 1.0, layout),
        lambda: believed_links(mask, mask, one, layout.sizes, 1.5),
        *(partial(_count_twice, sent, layout.sizes) for sent in messages),
    ]
