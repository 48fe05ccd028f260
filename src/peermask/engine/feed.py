"""Batches of the agents of one chunk, gathered where they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.data.augment import Augmentation
from peermask.data.batches import batch_rows
from peermask.data.dataset import Dataset, Split
from peermask.data.local import LocalSamples
from peermask.data.partition import Indices
from peermask.engine.evaluate import Score, evaluate
from peermask.models.network import Batch, Network
from peermask.models.readout import Readout

STEPS = 1000  # streams kept apart for the steps of one batch


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
        step += STEPS * clock.batch
        samples = [own.train for own in self.samples]
        index = batch_rows(samples, self.batch_size, self.seed, self.ids, clock.round, step)  # [A, B]
        inputs, targets = self.dataset.gather(self.dataset.train, self._moved(index))
        if self.augmentation != Augmentation():
            inputs = self._augmented(inputs, clock, step)
        return Batch(inputs, targets, self._valid)

    def validation_accuracy(self, params: Tensor) -> Tensor:
        return self.validate(params).main

    def validate(self, params: Tensor) -> Score:
        return self._evaluate(params, self.dataset.train, [own.validation for own in self.samples])

    def test(self, params: Tensor) -> Score:
        return self._evaluate(params, self.dataset.test, [own.test for own in self.samples])

    def _evaluate(self, params: Tensor, split: Split, indices: Sequence[Indices]) -> Score:
        return evaluate(self.network, params, self.dataset, split, indices, self._counts, self.readout, self.metrics)

    @cached_property
    def _counts(self) -> Tensor:
        """[A, classes] training samples of each label."""
        counts = np.zeros((len(self.samples), len(self.dataset.classes)), np.float32)
        for row, own in zip(counts, self.samples, strict=True):
            row[list(own.labels)] = own.counts
        return self._moved(counts)

    @cached_property
    def _valid(self) -> Tensor | None:
        """[A, B] 1 where a place of a batch holds a sample for the first time; None where all do."""
        sizes = [min(self.batch_size, len(own.train)) for own in self.samples]
        if min(sizes) == max(sizes):
            return None
        return self._moved((np.arange(max(sizes)) < np.array(sizes)[:, None]).astype(np.float32))

    def _moved(self, array: NDArray[Any]) -> Tensor:
        device = self.dataset.train.inputs.device
        here = torch.from_numpy(array)
        # More than a few bytes of pageable memory would be copied only after all work under way.
        return (here.pin_memory() if device.type == "cuda" else here).to(device, non_blocking=True)

    def _augmented(self, images: Tensor, clock: Clock, step: int) -> Tensor:
        draws = [self.augmentation.draw(images.shape[1], self.seed, agent, clock.round, step) for agent in self.ids]
        flips = torch.cat([flip for flip, _ in draws]).to(images.device, non_blocking=True)  # [A * B]
        offsets = torch.cat([offset for _, offset in draws]).to(images.device, non_blocking=True)  # [A * B, 2]
        flat = self.augmentation.apply(images.flatten(0, 1), flips, offsets)  # [A * B, C, H, W]
        return flat.view_as(images)
