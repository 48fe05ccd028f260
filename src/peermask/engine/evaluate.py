"""Accuracy and loss of personal models on samples of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from peermask.data.dataset import Dataset, Split
from peermask.models.network import Network
from peermask.models.readout import Readout, among

AT_ONCE = 500  # images of an agent in one forward pass: enough to fill a GPU, small enough to fit
AT_ONCE_ON_CPU = 250  # what a pass computes stays nearer to the cores


@dataclass(frozen=True)
class Score:
    """Of A agents, [A] each; NaN for an agent without samples."""

    accuracy: Tensor  # by the readout that counts: one of the next two
    accuracy_all: Tensor  # the answer is the largest of all logits
    accuracy_own: Tensor  # the answer is the largest among the labels an agent trains on
    accuracy_weighted: Tensor  # by the readout that counts, labels weighted by their share of the training data
    loss: Tensor  # mean cross-entropy over all labels, whatever the readout

    def columns(self) -> list[Tensor]:
        """In the order they are given to make one."""
        return [self.accuracy, self.accuracy_all, self.accuracy_own, self.accuracy_weighted, self.loss]


def evaluate(
    network: Network,
    params: Tensor,
    dataset: Dataset,
    split: Split,
    indices: Sequence[NDArray[np.int64]],
    counts: Tensor,
    readout: Readout = "all",
) -> Score:
    """Each of the A models on its own samples of a split; `counts` [A, classes] are of the labels it trains on."""
    device = params.device
    sizes = torch.tensor([len(own) for own in indices], device=device)  # [A]
    loss = torch.zeros(len(params), device=device)
    # For each label how many samples there are, and how many answers of either kind are right.
    tally = torch.zeros(len(params), counts.shape[1], 3, device=device)
    own_labels = (counts > 0)[:, None]  # [A, 1, classes]
    at_once = AT_ONCE_ON_CPU if device.type == "cpu" else AT_ONCE
    for start in range(0, max(map(len, indices)), at_once):
        picked = [own[start : start + at_once] for own in indices]
        width = max(map(len, picked))
        # Agents whose samples are used up repeat any image; it is counted out below.
        padded = np.stack([np.concatenate([own, np.zeros(width - len(own), np.int64)]) for own in picked])
        index = torch.from_numpy(padded).to(device)  # [A, B]
        valid = torch.arange(start, start + width, device=device) < sizes[:, None]  # [A, B]
        images, labels = dataset.gather(split, index)
        logits = network.logits(params, images)  # [A, B, classes]
        answers = torch.stack([labels, logits.argmax(-1), among(logits, own_labels).argmax(-1)], -1)  # [A, B, 3]
        right = (answers == labels[..., None]) & valid[..., None]
        tally.scatter_add_(1, labels[..., None].expand_as(right), right.float())  # whole numbers: exact in any order
        each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        loss += (each * valid).sum(1)
    samples, *right_by_label = tally.unbind(-1)  # [A, classes] each
    accuracy_all, accuracy_own = (right.sum(1) / sizes for right in right_by_label)  # 0 / 0 is NaN, as it should be
    of_all = readout == "all"
    return Score(
        accuracy_all if of_all else accuracy_own,
        accuracy_all,
        accuracy_own,
        weighted(right_by_label[0 if of_all else 1], samples, counts),
        loss / sizes,
    )


def weighted(right: Tensor, samples: Tensor, counts: Tensor) -> Tensor:
    """Σ_c f_c right_c / samples_c, with f the shares of the training data among the labels that have samples.

    All [A, classes]; gives [A].
    """
    known = counts * (samples > 0)
    return (known * right / samples.clamp(min=1)).sum(1) / known.sum(1)
