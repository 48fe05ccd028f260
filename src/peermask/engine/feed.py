"""Batches of the agents of one chunk, gathered where they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.data.augment import Augmentation
from peermask.data.batches import batch_indices
from peermask.data.dataset import Dataset
from peermask.data.local import LocalSamples
from peermask.engine.evaluate import Score, evaluate
from peermask.models.network import Batch, Network


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

    def rows(self, rows: slice) -> Feed:
        """The feed of some of these agents."""
        return replace(self, samples=self.samples[rows], ids=self.ids[rows])

    def batch(self, clock: Clock, step: int = 0) -> Batch:
        picked = [
            batch_indices(own.train, self.batch_size, self.seed, agent, clock.round, step)
            for own, agent in zip(self.samples, self.ids, strict=True)
        ]
        sizes = [len(indices) for indices in picked]
        width = max(sizes)
        padded = np.stack([np.resize(indices, width) for indices in picked])  # [A, B]: over again where there are few
        device = self.dataset.train.images.device
        index = torch.from_numpy(padded).to(device, non_blocking=True)
        images = self.dataset.normalise(self.dataset.train.images[index])  # [A, B, C, H, W]
        if self.augmentation != Augmentation():
            images = self._augmented(images, clock, step)
        valid = None
        if min(sizes) < width:
            filled = np.arange(width) < np.array(sizes)[:, None]
            valid = torch.from_numpy(filled.astype(np.float32)).to(device, non_blocking=True)  # [A, B]
        return Batch(images, self.dataset.train.labels[index], valid)

    def validation_accuracy(self, params: Tensor) -> Tensor:
        return self.validate(params).accuracy

    def validate(self, params: Tensor) -> Score:
        return evaluate(
            self.network, params, self.dataset, self.dataset.train, [own.validation for own in self.samples]
        )

    def test(self, params: Tensor) -> Score:
        return evaluate(self.network, params, self.dataset, self.dataset.test, [own.test for own in self.samples])

    def _augmented(self, images: Tensor, clock: Clock, step: int) -> Tensor:
        draws = [self.augmentation.draw(images.shape[1], self.seed, agent, clock.round, step) for agent in self.ids]
        flips = torch.cat([flip for flip, _ in draws]).to(images.device, non_blocking=True)  # [A * B]
        offsets = torch.cat([offset for _, offset in draws]).to(images.device, non_blocking=True)  # [A * B, 2]
        flat = self.augmentation.apply(images.flatten(0, 1), flips, offsets)  # [A * B, C, H, W]
        return flat.view_as(images)
