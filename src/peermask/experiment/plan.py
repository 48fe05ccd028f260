"""What a run will need, worked out from one step of one agent."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch

from peermask.algorithms.contract import Clock
from peermask.engine.device import one_thread_each
from peermask.engine.known import row_of
from peermask.engine.memory import STATE_COPIES, activation_bytes
from peermask.engine.states import tensors_of
from peermask.engine.traffic import schema_of
from peermask.experiment.build import Experiment, agents_at_once, assemble, is_fused
from peermask.kernels import have_triton
from peermask.wire import History, bitmap_size


@dataclass(frozen=True)
class Plan:
    name: str
    agents: int
    links: int
    rounds: int
    weights: int
    parameters: int
    kept: tuple[float, float]  # smallest and largest share of its weights that an agent may keep
    samples: tuple[int, int]  # fewest and most training samples of an agent
    chunk: int
    path: str
    memory: int  # bytes
    message_bytes: float  # a bitmap with header, on one link
    known_bytes: int  # what a receiver remembers of one sender
    checkpoint: int  # bytes
    seconds: float | None  # for all rounds without evaluation, where it can be told


def make_plan(name: str, experiment: Experiment, device: torch.device) -> Plan:
    config, layout = experiment.config, experiment.network.layout
    chunk = agents_at_once(experiment, device)
    cost, known, held, seconds = _try_one(experiment)
    fused = device.type == "cuda" and is_fused(experiment)
    module, shape = experiment.network.module, experiment.dataset.shape
    passes = activation_bytes(module, shape, config.batch_size, fused=fused)
    side_by_side = min(config.agents, os.cpu_count() or 1) if device.type == "cpu" else chunk
    splits = (experiment.dataset.train, experiment.dataset.test)
    images = sum(split.images.numel() * split.images.element_size() for split in splits)
    sizes = [len(own.train) for own in experiment.samples]
    kept = experiment.agents.keep.sum(1) / layout.weights  # [N]
    return Plan(
        name=name,
        agents=config.agents,
        links=sum(experiment.messages_sent),
        rounds=config.rounds,
        weights=layout.weights,
        parameters=layout.total,
        kept=(float(kept.min()), float(kept.max())),
        samples=(min(sizes), max(sizes)),
        chunk=chunk,
        path=_path(experiment, device),
        memory=config.agents * (held + known) + side_by_side * (passes + STATE_COPIES * 4 * layout.total) + images,
        message_bytes=cost,
        known_bytes=known,
        checkpoint=config.agents * (held + known),
        seconds=seconds * config.rounds * config.agents / side_by_side if device.type == "cpu" else None,
    )


def _path(experiment: Experiment, device: torch.device) -> str:
    """Which way gradients will be computed."""
    if device.type == "cpu":
        return "one agent at a time, on each core"
    if experiment.network.stack is None:
        return "agents vectorised (the module is no chain of common layers)"
    if is_fused(experiment):
        return "agents in fused kernels"
    return f"agents as groups ({'sizes that the kernels cannot do' if have_triton() else 'no Triton here'})"


def _try_one(experiment: Experiment) -> tuple[float, int, int, float]:
    """The first agent's message, what is remembered of it, its state, and the time for a step."""
    algorithm, feed = assemble(experiment, torch.device("cpu"))
    state = algorithm.init(experiment.agents.rows(slice(0, 1)))
    held = tensors_of(state).values()
    alone = feed.rows(slice(0, 1))
    with one_thread_each():
        algorithm.learn(state, alone, Clock(1, experiment.config.rounds))  # the first time pays for set-up
        begun = time.perf_counter()
        state, _ = algorithm.learn(state, alone, Clock(1, experiment.config.rounds))
        seconds = time.perf_counter() - begun
    payload = algorithm.share(state)
    size = sum(tensor.numel() * tensor.element_size() for tensor in held)
    if not payload:
        return 0.0, 0, size, seconds
    schema = schema_of(payload, experiment.network.layout.sizes)
    return bitmap_size(schema), History.begin(row_of(payload, 0), schema).nbytes, size, seconds
