"""Batches of the agents of one chunk, gathered on the device that computes, and prefetched for the next round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.compute.network import Batch, Network
from peermask.data.batches import Augmentation, batch_rows
from peermask.data.dataset import Dataset, Split
from peermask.data.local import LocalSamples
from peermask.data.partition import Indices
from peermask.models.outputs import Readout
from peermask.run.metrics import Score, evaluate

Draw = tuple[Tensor, ...]  # [A, B] samples; and where images are augmented [A * B] flips, [A * B, 2] offsets
STEPS_PER_BATCH = 1000  # streams kept apart for the steps of one batch


@dataclass(frozen=True)
class Feed:
    """Implements `LocalData` for the agents `ids`; the dataset lies on the device that computes."""

    dataset: Dataset
    samples: Sequence[LocalSamples]  # of the A agents
    ids: tuple[int, ...]
    batch_size: int
    seed: int
    augmentation: Augmentation
    network: Network
    readout: Readout = "all"  # the one that counts
    metrics: tuple[str, ...] = ()  # beside those of the task

    def rows(self, rows: slice) -> Feed:
        """The feed of some of these agents."""
        return replace(self, samples=self.samples[rows], ids=self.ids[rows])

    def batch(self, clock: Clock, step: int = 0) -> Batch:
        return self.gathered(tuple(map(self._to_device, self.draw(clock, step))))

    def draw(self, clock: Clock, step: int = 0) -> Draw:
        """Draw a batch's indices and changes, on the CPU."""
        step += STEPS_PER_BATCH * clock.batch
        samples = [local.train for local in self.samples]
        index = batch_rows(samples, self.batch_size, self.seed, self.ids, clock.round, step)
        if self.augmentation == Augmentation():
            return (torch.from_numpy(index),)
        seed, count = self.seed, index.shape[1]
        draws = [self.augmentation.draw(count, seed, agent, clock.round, step) for agent in self.ids]
        flips, offsets = (torch.cat(parts) for parts in zip(*draws, strict=True))
        return torch.from_numpy(index), flips, offsets

    def gathered(self, draw: Draw) -> Batch:
        """The batch of a draw that lies on the device."""
        index, *changes = draw
        inputs, targets = self.dataset.gather(self.dataset.train, index)
        if changes:
            flat = self.augmentation.apply(inputs.flatten(0, 1), *changes)  # [A * B, C, H, W]
            inputs = flat.view_as(inputs)
        return Batch(inputs, targets, self._valid)

    def validation_accuracy(self, params: Tensor) -> Tensor:
        return self.validate(params).main

    def validate(self, params: Tensor) -> Score:
        return self._evaluate(params, self.dataset.train, [local.validation for local in self.samples])

    def test(self, params: Tensor) -> Score:
        return self._evaluate(params, self.dataset.test, [local.test for local in self.samples])

    def _evaluate(self, params: Tensor, split: Split, indices: Sequence[Indices]) -> Score:
        return evaluate(self.network, params, self.dataset, split, indices, self._counts, self.readout, self.metrics)

    @cached_property
    def sizes(self) -> Tensor:
        """[A] float32: training samples of each agent."""
        return self._to_device(torch.tensor([float(len(local.train)) for local in self.samples]))

    @cached_property
    def _counts(self) -> Tensor:
        """[A, classes] training samples of each label."""
        counts = np.zeros((len(self.samples), len(self.dataset.classes)), np.float32)
        for row, local in zip(counts, self.samples, strict=True):
            row[list(local.labels)] = local.counts
        return self._to_device(torch.from_numpy(counts))

    @cached_property
    def _valid(self) -> Tensor | None:
        """[A, B] 1 where a place of a batch holds a sample for the first time; None where all do."""
        sizes = [min(self.batch_size, len(local.train)) for local in self.samples]
        if min(sizes) == max(sizes):
            return None
        return self._to_device(torch.from_numpy((np.arange(max(sizes)) < np.array(sizes)[:, None]).astype(np.float32)))

    def _to_device(self, drawn: Tensor) -> Tensor:
        device = self.dataset.train.inputs.device
        return fill(torch.empty_like(drawn, device=device), drawn) if device.type == "cuda" else drawn


def fill(place: Tensor, drawn: Tensor) -> Tensor:
    """Copy a CPU tensor into a device's memory without waiting for either."""
    # More than a few bytes of pageable memory would be copied only after all work under way.
    return place.copy_(drawn.pin_memory() if place.device.type == "cuda" else drawn, non_blocking=True)


class Prefetch:
    """Prefetch of the next round's draws by another thread: `draws` in each step, `start` at a round's end."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)
        self.ahead: dict[Clock, Future[list[Draw]]] = {}
        self.following: dict[Clock, Callable[[Clock], list[Draw]]] = {}  # not begun yet

    def draws(self, feed: Feed, clock: Clock, steps: Iterable[int]) -> list[Draw]:
        """Draws of this round's batches, one for each step; the same steps of the next round follow."""

        def drawn(clock: Clock) -> list[Draw]:
            return [feed.draw(clock, step) for step in steps]

        self.following[replace(clock, round=clock.round + 1)] = drawn
        ahead = self.ahead.pop(clock, None)
        return drawn(clock) if ahead is None else ahead.result()

    def start(self) -> None:
        """Begin the next draws; call it after issuing a round, which drawing would slow down (Python's lock)."""
        for clock, drawn in self.following.items():
            self.ahead[clock] = self.thread.submit(drawn, clock)
        self.following.clear()
