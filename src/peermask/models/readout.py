"""Readouts: which labels an agent's answer is chosen among.

`all`: the answer is the largest of all logits. `own`: the largest among the labels in the agent's training data, so
that a model which knows more labels than an agent ever meets loses nothing to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

Readout: TypeAlias = Literal["all", "own"]


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
