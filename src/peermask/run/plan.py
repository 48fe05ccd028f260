"""Plan of what a run needs, from one step of a few agents. Nothing is learned: the step's result is discarded."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from peermask.algorithms.contract import Clock
from peermask.compute.device import PeakMemory, enough_memory, pick_device
from peermask.compute.traced import TracedStack
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import as_config
from peermask.data.dataset import Dataset
from peermask.errors import ConfigError
from peermask.graph.mixing import Mixing
from peermask.models.layout import UNMASKABLE
from peermask.run.assemble import STATE_COPIES, activation_bytes, agents_at_once, build_simulator, is_fused
from peermask.run.build import LINK_BYTES, Experiment, build
from peermask.run.cuda_graphs import tensors_of
from peermask.run.feed import Feed
from peermask.run.ledger import SENDERS_REMEMBERED
from peermask.run.metrics import SAMPLES_AT_ONCE_ON_CPU, mean_losses
from peermask.run.simulator import Simulator
from peermask.run.start import check_ranks
from peermask.wire import Schema, bitmap_size
from peermask.wire.cost import message_cost
from peermask.wire.receiver_state import ReceiverRows
from peermask.wire.schema import Payload

TRIAL_STEPS = 3  # of the same step; the fastest counts, since the first includes set-up
OBJECT_BYTES = 30_000  # an agent takes in this process with any model; measured with 16 hidden units


@dataclass(frozen=True)
class Plan:
    """Needs of a run of one algorithm.

    Attributes:
        name: The algorithm's.
        memory: Bytes of a process at its peak; on a GPU, of the device.
        message_bytes: Of one message on one link, as a bitmap with header.
        checkpoint: Bytes.
        seconds: For all rounds without evaluation; None on a GPU.

    Examples:
        >>> import peermask
        >>> made = peermask.plan({"agents": 4, "rounds": 2, "retention": 0.3, "graph": "ring", "algorithm": "dsgd"})
        >>> made["dsgd"].links, made["dsgd"].rounds
        (8, 2)
    """

    name: str
    agents: int
    links: int
    rounds: int
    weights: int
    parameters: int
    account: dict[str, tuple[int, int]]  # what becomes of parameters: how many tensors, and numbers in them
    refused: tuple[str, ...]  # names of those that cannot be masked
    notes: tuple[str, ...]
    kept: tuple[float, float]  # smallest and largest share of its weights that an agent may keep
    samples: tuple[int, int]  # fewest and most training samples of an agent
    chunk: int
    path: str
    memory: int  # bytes, of each rank
    message_bytes: float  # a bitmap with header, on one link
    known_bytes: int  # what a receiver remembers of one sender
    remembered: int  # of how many senders, at most
    checkpoint: int  # bytes
    seconds: float | None  # for all rounds without evaluation, if known


def plan(
    config: ExperimentConfig | Mapping[str, Any] | Path | str,
    *,
    dataset: Dataset | None = None,
    module: nn.Module | None = None,
    device: str = "auto",
    processes: int = 1,
) -> dict[str, Plan]:
    """Check a config and estimate what a run of it needs. Nothing is learned or written.

    Args:
        config: A config, plain values as for `make_config`, or the path of a config file.
        dataset: Data of your own instead of the config's, as for `run_experiment`.
        module: A network of your own instead of the config's.
        device: "cpu", "cuda", "cuda:N" or "auto".
        processes: Number of processes to divide agents between.

    Returns:
        A `Plan` for each algorithm, by name. Its `memory` and `message_bytes` are bytes, its `seconds` are of all
        rounds without evaluation (None on a GPU).

    Raises:
        PeermaskError: A mistake in the config or the data, as a run would report it.

    Examples:
        >>> import peermask
        >>> config = {"agents": 4, "rounds": 2, "model": "mlp", "retention": 0.3, "algorithm": "mce-pl"}
        >>> plan = peermask.plan(config)["mce-pl"]
        >>> plan.agents, plan.weights
        (4, 50432)
    """
    resolved, where = as_config(config), pick_device(device)
    if processes < 1:
        raise ConfigError(f"processes is {processes}; at least 1 is needed")
    if processes > 1:
        check_ranks(processes, resolved)
    with enough_memory(where):
        return {
            name: make_plan(name, build(arm, dataset, module), where, processes)
            for name, arm in resolved.arms().items()
        }


def make_plan(name: str, experiment: Experiment, device: torch.device, ranks: int = 1) -> Plan:
    """Plan agents that are divided evenly among `ranks` processes, each with its own device."""
    config, layout = experiment.config, experiment.network.layout
    chunk = agents_at_once(experiment, device)
    tried = _try_few(experiment)
    here = -(-config.agents // ranks)
    sizes = experiment.samples.sizes
    kept = experiment.agents.keep.sum(1) / layout.weights  # [N]
    links = sum(experiment.messages_sent)
    schedule = experiment.schedule
    remembered = min(config.agents - 1, experiment.mixing.links.most * schedule.graphs(config.rounds))
    if schedule.changes:
        remembered = min(remembered, SENDERS_REMEMBERED)
    histories = remembered * tried.known if schedule.changes else 0  # of one agent, beside those of a round
    resting = here * (tried.in_a_round + histories) + LINK_BYTES * links // 2
    return Plan(
        name=name,
        agents=config.agents,
        links=links,
        rounds=config.rounds,
        weights=layout.weights,
        parameters=layout.total,
        account={fate: (len(own), sum(layer.size for layer in own)) for fate, own in layout.account.items()},
        refused=tuple(layer.name for layer in layout.account.get(UNMASKABLE, ())),
        notes=experiment.notes,
        kept=(float(kept.min()), float(kept.max())),
        samples=(int(sizes.min()), int(sizes.max())),
        chunk=chunk,
        path=gradient_path(experiment, device),
        memory=resting + (tried.process if device.type == "cpu" else _on_device(experiment, chunk)),
        message_bytes=tried.message,
        known_bytes=tried.known,
        remembered=remembered,
        checkpoint=config.agents * (tried.state + (histories or tried.known)),
        seconds=tried.seconds * config.rounds * here if device.type == "cpu" else None,
    )


def _on_device(experiment: Experiment, chunk: int) -> int:
    """Bytes on a GPU beside the agents at rest: the data, and the passes of the agents computed at once."""
    dataset, total = experiment.dataset, experiment.network.layout.total
    inputs = sum(split.inputs.numel() * split.inputs.element_size() for split in (dataset.train, dataset.test))
    batch, fused = experiment.config.batch_size, is_fused(experiment)
    passes = activation_bytes(experiment.network.module, dataset.blank, batch, fused=fused)
    return inputs + chunk * (passes + STATE_COPIES * 4 * total)


def gradient_path(experiment: Experiment, device: torch.device) -> str:
    """Say in which way gradients will be computed."""
    if device.type == "cpu":
        return "one agent at a time, on each core"
    if experiment.network.in_turn:
        return "agents one after another (torch cannot vectorise recurrent layers and attention)"
    stack = experiment.network.stack
    if stack is None:
        return "agents vectorised (the module has operations that cannot be stacked)"
    if isinstance(stack, TracedStack):
        kernels = ", convolutions and group norms by kernels" if is_fused(experiment) else ""
        return f"agents in stacked operations{kernels}"
    if is_fused(experiment):
        return "agents in fused kernels"
    return "agents as groups (sizes that the kernels cannot do)"


@dataclass(frozen=True)
class Trial:
    """Needs of one agent in a trial."""

    state: int  # bytes between two rounds
    in_a_round: int  # bytes at the peak of a round, beside what only those need that are computed just then
    process: int  # bytes of this process while it computes as many agents as it has cores, without `in_a_round`
    message: float  # bytes of a bitmap with header
    known: int  # bytes that a receiver remembers of a sender
    seconds: float  # of a round, on a CPU


def _try_few(experiment: Experiment) -> Trial:
    """Time a step of as many agents as there are cores, always from their first state; other agents' messages are
    copies of the first."""
    config, sizes = experiment.config, experiment.network.layout.sizes
    few = min(config.agents, os.cpu_count() or 1)
    clock = Clock(1, config.rounds, batches=config.local_batches or 1)
    spent, known, shared = [], None, {}
    with PeakMemory() as peak, build_simulator(experiment, torch.device("cpu"), rows=slice(0, few)) as simulator:

        def move(clock: Clock, sent: Sequence[Payload]) -> tuple[Payload, Sequence[Mixing]]:
            messages, mixings = simulator.concatenate(clock, sent)
            # A large step can overflow. That is for the run to find out: a few rounds later it may be small.
            messages = {name: torch.nan_to_num(leaf) for name, leaf in messages.items()}
            return {name: leaf[:1].expand(config.agents, *leaf.shape[1:]) for name, leaf in messages.items()}, mixings

        first = list(simulator.states)
        for _ in range(TRIAL_STEPS):
            started, simulator.states = time.perf_counter(), list(first)
            shared = {name: leaf[:few] for name, leaf in simulator.play(clock, move).shared.items()}
            if shared:
                _, known = message_cost(shared, None, sizes, simulator.spread)
            spent.append(time.perf_counter() - started)
        simulator.spread(partial(_evaluate_one_pass, simulator), simulator.feeds, first)
        learned, _ = simulator.algorithm.learn(first[0], simulator.feeds[0], clock)
    state = _bytes(first[0])
    message = sum(leaf[0].numel() * leaf.element_size() for leaf in shared.values())
    history = known.histories[0].nbytes if isinstance(known, ReceiverRows) else 0
    # States, messages and what is known of them, before and after a step and as copied for a checkpoint.
    in_a_round = 2 * state + _bytes(learned) + 2 * message + 3 * history + OBJECT_BYTES
    return Trial(
        state=state,
        in_a_round=in_a_round,
        process=max(0, peak.bytes - few * in_a_round),
        message=bitmap_size(Schema.of_rows(shared, sizes)) if shared else 0.0,
        known=history,
        seconds=min(spent) / few,
    )


def _evaluate_one_pass(simulator: Simulator, feed: Feed, state: Any) -> None:
    """Evaluate as many samples as one pass takes: at times that needs more memory than a step."""
    few = [own.test[:SAMPLES_AT_ONCE_ON_CPU] for own in feed.samples]
    mean_losses(feed.network, simulator.algorithm.local_model(state), feed.dataset, feed.dataset.test, few, ())


def _bytes(state: object) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(state).values())
