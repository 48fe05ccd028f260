"""Losses: how far each output is from its target. One of your own is one function, registered here.

A loss takes outputs [n, O] and targets, labels [n] or numbers [n, O], and gives one number for each sample, [n].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor
from torch.nn import functional as F

from peermask.registry import Registry

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
