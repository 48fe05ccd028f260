"""What a run will need, worked out from a few rounds of a few agents."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from peermask.algorithms.contract import Clock
from peermask.compute.traced import TracedStack
from peermask.graph.mixing import Mixing
from peermask.kernels import have_triton
from peermask.models.layout import UNMASKABLE
from peermask.run.assemble import agents_at_once, build_simulator, is_fused
from peermask.run.build import LINK_BYTES, Experiment
from peermask.run.cuda_graphs import tensors_of
from peermask.run.link_cost import REMEMBERED
from peermask.run.memory import STATE_COPIES, activation_bytes
from peermask.wire import Schema, bitmap_size
from peermask.wire.cost import message_cost
from peermask.wire.receiver_state import ReceiverRows, ReceiverState
from peermask.wire.schema import Payload

ENOUGH = 0.3  # seconds of trial rounds
MOST_TRIALS = 20
OBJECT_BYTES = 30_000  # an agent takes in this process with any model; measured with 16 hidden units


@dataclass(frozen=True)
class Plan:
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
    remembered: int  # of how many senders
    checkpoint: int  # bytes
    seconds: float | None  # for all rounds without evaluation, if known


def make_plan(name: str, experiment: Experiment, device: torch.device, ranks: int = 1) -> Plan:
    """Of agents that are divided evenly among `ranks` processes, each with its own device."""
    config, layout = experiment.config, experiment.network.layout
    chunk = agents_at_once(experiment, device)
    tried = _try_few(experiment)
    fused = device.type == "cuda" and is_fused(experiment)
    module = experiment.network.module
    passes = activation_bytes(module, experiment.dataset.blank, config.batch_size, fused=fused)
    here = -(-config.agents // ranks)
    side_by_side = min(here, os.cpu_count() or 1) if device.type == "cpu" else chunk
    splits = (experiment.dataset.train, experiment.dataset.test)
    inputs = sum(split.inputs.numel() * split.inputs.element_size() for split in splits)
    sizes = experiment.samples.sizes
    kept = experiment.agents.keep.sum(1) / layout.weights  # [N]
    links = sum(experiment.messages_sent)
    remembered = _remembered(experiment)
    histories = remembered * tried.known if experiment.schedule.changes else 0  # of one agent, beside those of a round
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
        memory=here * (tried.in_a_round + histories)
        + LINK_BYTES * links // 2
        + side_by_side * (passes + STATE_COPIES * 4 * layout.total)
        + inputs,
        message_bytes=tried.message,
        known_bytes=tried.known,
        remembered=remembered,
        checkpoint=config.agents * (tried.state + (histories or tried.known)),
        seconds=tried.seconds * config.rounds * here if device.type == "cpu" else None,
    )


def _remembered(experiment: Experiment) -> int:
    """Of how many senders an agent has a history, at most."""
    degree, graphs = experiment.mixing.links.most, experiment.schedule.graphs(experiment.config.rounds)
    most = min(experiment.config.agents - 1, degree * graphs)
    return min(most, REMEMBERED) if experiment.schedule.changes else most


def gradient_path(experiment: Experiment, device: torch.device) -> str:
    """Which way gradients will be computed."""
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
    return f"agents as groups ({'sizes that the kernels cannot do' if have_triton() else 'no Triton here'})"


@dataclass(frozen=True)
class Tried:
    """Of one agent."""

    state: int  # bytes between two rounds
    in_a_round: int  # bytes at the peak of a round, beside what only those need that are computed just then
    message: float  # bytes of a bitmap with header
    known: int  # bytes that a receiver remembers of a sender
    seconds: float  # of a round, on a CPU


def _try_few(experiment: Experiment) -> Tried:
    """A few rounds of as many agents as there are cores; messages of other agents are copies of the first."""
    agents, rounds, sizes = experiment.config.agents, experiment.config.rounds, experiment.network.layout.sizes
    few = min(agents, os.cpu_count() or 1)
    known: ReceiverState | None = None
    with build_simulator(experiment, torch.device("cpu"), rows=slice(0, few)) as simulator:

        def move(clock: Clock, shared: Sequence[Payload]) -> tuple[Payload, Sequence[Mixing]]:
            messages, mixings = simulator.concatenate(clock, shared)
            return {name: leaf[:1].expand(agents, *leaf.shape[1:]) for name, leaf in messages.items()}, mixings

        spent, begun = [0.0], time.perf_counter()
        while len(spent) < MOST_TRIALS and (len(spent) < 3 or time.perf_counter() - begun < ENOUGH):
            started, clock = time.perf_counter(), Clock(1, rounds, batches=experiment.config.local_batches or 1)
            shared = {name: leaf[:few] for name, leaf in simulator.play(clock, move).shared.items()}
            if shared:
                _, known = message_cost(shared, known, sizes, simulator.spread)
            spent.append(time.perf_counter() - started)
        state, local = simulator.states[0], simulator.feeds[0]
        learned, _ = simulator.algorithm.learn(state, local, Clock(1, rounds))
    schema = Schema.of_rows(shared, sizes) if shared else None
    message = sum(leaf[0].numel() * leaf.element_size() for leaf in shared.values())
    history = known.histories[0].nbytes if isinstance(known, ReceiverRows) else 0
    return Tried(
        state=_bytes(state),
        # States, messages and what is known of them, before and after a step and as copied for a checkpoint.
        in_a_round=2 * _bytes(state) + _bytes(learned) + 2 * message + 3 * history + OBJECT_BYTES,
        message=bitmap_size(schema) if schema else 0.0,
        known=history,
        seconds=statistics.median(spent[2:]) / few,  # the first round pays for set-up
    )


def _bytes(state: object) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(state).values())
