"""Metrics: figures of an agent's outputs on its own samples, by task. Your own metric is one function, registered here.

A metric takes the outputs [n, O] and targets of one agent and gives one number; larger is better, unless its name says
what it counts. Outputs are logits, among which an answer is chosen by the readout that counts, or of a regression
values in the targets' own units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from peermask.registry import Registry
from peermask.task import FIGURES as FIGURES

Metric: TypeAlias = Callable[[Tensor, Tensor], Tensor]

metrics: Registry[Metric] = Registry("metric")


@metrics.register("f1")
def f1(outputs: Tensor, targets: Tensor) -> Tensor:
    """Macro F1, the mean of 2 right / (predicted + present) over labels that are either; predicted: logit above 0."""
    predicted, present = outputs > 0, targets > 0.5  # [n, K]
    return macro_f1((predicted & present).sum(0), predicted.sum(0), present.sum(0))


@metrics.register("average_precision")
def average_precision(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over labels present of the mean, over samples with the label, of the precision among outputs no smaller.

    Samples of equal outputs count together, so their order does not matter.
    """
    precisions = []
    for scores, present in zip(outputs.unbind(1), (targets > 0.5).unbind(1), strict=True):
        if not bool(present.any()):
            continue
        order = scores.argsort(descending=True, stable=True)
        ranked, hits = scores[order], present[order].double().cumsum(0)  # [n]
        # The last place of every run of equal outputs stands for all of them.
        last = torch.searchsorted(-ranked, -ranked, right=True) - 1  # [n]
        precision = hits[last] / (last + 1)
        precisions.append(precision[present[order]].mean())
    return torch.stack(precisions).mean() if precisions else outputs.new_tensor(torch.nan, dtype=torch.float64)


@metrics.register("r2")
def r2(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 - Σ (y - o)² / Σ (y - mean y)², in the mean over outputs; unknown where all targets are the same."""
    y, o = targets.double(), outputs.double()
    around = (y - y.mean(0)).square().sum(0)  # [O]
    varies = around > 0
    each = 1.0 - (y - o).square().sum(0) / around.masked_fill(~varies, 1.0)
    return each[varies].mean()


@metrics.register("mae")
def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error, in the targets' own units; smaller is better."""
    return (outputs.double() - targets.double()).abs().mean()


def confusion_of(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    """[classes, classes]: how often each label, a row, was answered as each, a column."""
    return torch.bincount(labels * classes + logits.argmax(-1), minlength=classes * classes).view(classes, classes)


def macro_f1(right: Tensor, answered: Tensor, present: Tensor) -> Tensor:
    """Return the mean of 2 right / (answered + present) over labels answered or present, from counts [..., K]."""
    both = (answered + present).double()
    return (2.0 * right.double() / both.clamp(min=1)).sum(-1) / (both > 0).sum(-1)  # of none it is unknown: NaN
