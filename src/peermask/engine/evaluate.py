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

AT_ONCE = 500  # images of an agent in one forward pass: enough to fill a GPU, small enough to fit
AT_ONCE_ON_CPU = 250  # what a pass computes stays nearer to the cores


@dataclass(frozen=True)
class Score:
    accuracy: Tensor  # [A] top-1 over all classes; NaN for an agent without samples
    loss: Tensor  # [A] mean cross-entropy


def evaluate(
    network: Network, params: Tensor, dataset: Dataset, split: Split, indices: Sequence[NDArray[np.int64]]
) -> Score:
    """Each of the A models on its own samples of a split."""
    device = params.device
    sizes = torch.tensor([len(own) for own in indices], device=device)  # [A]
    right = torch.zeros(len(params), device=device)
    loss = torch.zeros(len(params), device=device)
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
        right += ((logits.argmax(-1) == labels) & valid).sum(1)
        each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        loss += (each * valid).sum(1)
    return Score(right / sizes, loss / sizes)  # 0 / 0 is NaN, as it should be
