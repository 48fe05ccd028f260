"""Outputs of a network: losses, and readouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peermask.registry import Registry
from peermask.task import Readout as Readout

# Loss of outputs [n, O] and targets, labels [n] or numbers [n, O]: one number for each sample, [n]. Your own is one
# registered function.

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

losses: Registry[Loss] = Registry("loss")
DEFAULT = {"classification": "cross-entropy", "multi-label": "binary-cross-entropy", "regression": "squared-error"}


@losses.register("cross-entropy")
def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """-log softmax(o)_y: for one label of several."""
    return F.cross_entropy(outputs, targets, reduction="none")


@losses.register("binary-cross-entropy")
def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """-log sigmoid of every output, or of its opposite where the label is absent, in the mean: for several labels."""
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(-1)


@losses.register("squared-error")
def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """(o - y)², in the mean over outputs, with y of mean 0 and deviation 1."""
    return (outputs - targets).square().mean(-1)


@losses.register("absolute-error")
def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """|o - y|, in the mean over outputs, with y of mean 0 and deviation 1."""
    return (outputs - targets).abs().mean(-1)


@losses.register("huber")
def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared up to a difference of 1, absolute beyond: outliers count less."""
    return F.huber_loss(outputs, targets, reduction="none").mean(-1)


# Labels that an answer is chosen among. `all`: the largest of all logits. `own`: the largest among the labels in the
# agent's training data, so that labels of other agents cost no accuracy.


def among(logits: Tensor, own: Tensor) -> Tensor:
    """The logits with those of other labels so low that they are never largest and their probability is 0.

    They stay finite, since infinity would make a difference, a loss or a mean NaN.
    """
    return logits.masked_fill(~own, torch.finfo(logits.dtype).min)


class OwnLabels(nn.Module):
    """A network that answers only among some labels; an ordinary module, to be called and exported as one."""

    own: Tensor  # [classes] bool

    def __init__(self, network: nn.Module, own: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("own", own)

    def forward(self, images: Tensor) -> Tensor:  # [B, C, H, W] -> [B, classes]
        return among(self.network(images), self.own)


def with_readout(network: nn.Module, readout: Readout, labels: Sequence[int], classes: int) -> nn.Module:
    """A personal network as it answers: itself, or among its agent's labels."""
    if readout == "all":
        return network
    own = torch.zeros(classes, dtype=torch.bool)
    own[list(labels)] = True
    return OwnLabels(network, own).train(network.training)
