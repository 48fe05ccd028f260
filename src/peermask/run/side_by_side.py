"""Several runs side by side on one GPU: each takes its turn, and where all wait for gradients, one stack computes them.

A GPU with the twenty agents of one run waits for its host. Runs that differ in seed or settings have networks of the
same form, so their gradients are computed in one pass, with the agents of all runs stacked; everything else stays each
run's own. Only one run computes at a time, in its own thread, so none can disturb what another has set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from threading import Semaphore, Thread
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from peermask.compute.device import fast_float32
from peermask.compute.network import Batch, Gradient, Network
from peermask.config.experiment import ExperimentConfig
from peermask.data.dataset import Dataset
from peermask.run.assemble import agents_at_once, is_fused
from peermask.run.build import build

T = TypeVar("T")
Form = tuple[str, torch.Size, torch.Size, bool]


@dataclass
class _Asked:
    """The gradient that a run waits for, and then has."""

    network: Network
    params: Tensor  # [A, P]
    batch: Batch
    answer: tuple[Tensor, Tensor] | None = None
    error: BaseException | None = None


@dataclass
class _Seat(Generic[T]):
    """One run: its thread moves only while it has the turn."""

    task: Callable[[Gradient], T]
    model: str  # runs with the same text here have networks of the same form
    back: Semaphore
    turn: Semaphore = field(default_factory=lambda: Semaphore(0))
    asked: _Asked | None = None
    result: T | None = None
    error: BaseException | None = None
    over: bool = False

    def play(self) -> None:
        self.turn.acquire()
        try:
            self.result = self.task(self.gradient)
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            self.back.release()

    def gradient(self, network: Network, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Called by the run: wait until all others are as far."""
        asked = self.asked = _Asked(network, params, batch)
        self.back.release()
        self.turn.acquire()
        if asked.error is not None:
            raise asked.error
        assert asked.answer is not None
        return asked.answer

    @property
    def form(self) -> Form:
        assert self.asked is not None
        batch = self.asked.batch
        return self.model, self.asked.params.shape[1:], batch.inputs.shape[1:], batch.valid is None


def run_together(tasks: Sequence[tuple[str, Callable[[Gradient], T]]]) -> list[T | BaseException]:
    """Run every task, which is given the gradient to use, beside the others; what each returned or raised.

    The text before a task says of what form its network is.
    """
    back = Semaphore(0)
    seats = [_Seat(task, model, back) for model, task in tasks]
    threads = [Thread(target=seat.play, daemon=True) for seat in seats]
    for thread in threads:
        thread.start()
    while playing := [seat for seat in seats if not seat.over]:
        for seat in playing:  # each runs until it needs the next gradient, or ends
            seat.asked = None
            seat.turn.release()
            back.acquire()
        waiting = sorted((seat for seat in playing if not seat.over), key=lambda seat: repr(seat.form))
        for _, alike in groupby(waiting, key=lambda seat: seat.form):
            _answer([seat.asked for seat in alike if seat.asked is not None])
    for thread in threads:
        thread.join()
    return [seat.error if seat.error is not None else seat.result for seat in seats]  # type: ignore[misc]


def _answer(asked: Sequence[_Asked]) -> None:
    """The gradients of all agents in one pass, [A1 + A2 + ..., P]."""
    try:
        batches = [one.batch for one in asked]
        valid = None if batches[0].valid is None else _joined(batch.valid for batch in batches)
        batch = Batch(_joined(b.inputs for b in batches), _joined(b.targets for b in batches), valid)
        sizes = [len(one.params) for one in asked]
        parts = sizes if len(sizes) > 1 else None
        gradients, losses = asked[0].network.gradient_here(_joined(one.params for one in asked), batch, parts)
        for one, *answer in zip(asked, gradients.split(sizes), losses.split(sizes), strict=True):
            one.answer = (answer[0], answer[1])
    except BaseException as error:
        for one in asked:
            one.error = error


def _joined(parts: Iterable[Any]) -> Tensor:
    tensors: list[Tensor] = list(parts)
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


MOST = 4  # runs at once: a GPU has enough to do with their agents


def runs_at_once(config: ExperimentConfig, dataset: Dataset | None, device: torch.device) -> int:
    """How many runs like this one to compute side by side.

    One on a CPU, whose cores are busy with it, and where it is not known that each ends with the numbers it has alone.
    """
    if device.type == "cpu" or config.traced_by is not None:
        return 1
    experiment = build(config, dataset)
    if not is_fused(experiment):
        return 1
    sizes = {runs: runs * config.agents for runs in range(MOST, 1, -1)}
    return next((runs for runs, agents in sizes.items() if agents_at_once(experiment, device, agents) == agents), 1)


def play_side_by_side(
    configs: Sequence[ExperimentConfig], play: Callable[[ExperimentConfig, Gradient | None], T]
) -> list[T | BaseException]:
    """The result of each run, or the error it ended with."""
    if len(configs) == 1:
        try:
            return [play(configs[0], None)]
        except Exception as error:
            return [error]
    with fast_float32():  # no run that ends switches it off for the others

        def task(config: ExperimentConfig) -> Callable[[Gradient], T]:
            return lambda gradient: play(config, gradient)

        return run_together([(_form(config), task(config)) for config in configs])


def _form(config: ExperimentConfig) -> str:
    """All that a gradient depends on beside parameters and batch: the network, what was put into it, and the loss."""
    table = config.table()
    return json.dumps([table["model"], table["dataset"], table.get("task"), config.frozen.source], sort_keys=True)
