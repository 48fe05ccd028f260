"""Parameter vectors as messages, and messages mixed back into vectors.

A vector travels as two leaves, `weights` [P_w] and `rest` [P - P_w] (biases and norms), so that a mask that
travels with it covers the weights exactly and the codec need not send positions twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from peermask.algorithms.contract import Payload
from peermask.graph.links import Links
from peermask.graph.mixing import Mixing

# Shapes: A receivers, K received messages, P_w masked weights, P all parameters

Neighbours = Literal["metropolis", "closed"]


def as_message(params: Tensor, weights: int) -> Payload:
    """[A, P] -> its leaves; `rest` is left out by a network without biases."""
    leaves = {"weights": params[:, :weights], "rest": params[:, weights:]}
    return {name: leaf for name, leaf in leaves.items() if leaf.shape[1]}


def as_params(payload: Payload) -> Tensor:
    """The inverse of `as_message`."""
    return mixed(payload, lambda leaf: leaf)


def mixed(received: Payload, mean: Callable[[Tensor], Tensor]) -> Tensor:
    """The same mean of every leaf, as one vector: [K, ...] -> [A, P]."""
    return torch.cat([mean(received[name]) for name in ("weights", "rest") if name in received], dim=1)


def with_rest(weights: Tensor, received: Payload, mean: Callable[[Tensor], Tensor]) -> Tensor:
    """Weights that were mixed separately, and a mean of everything else."""
    return torch.cat([weights, mean(received["rest"])], dim=1) if "rest" in received else weights  # [A, P]


def neighbour_mean(mixing: Mixing, neighbours: Neighbours) -> Callable[[Tensor], Tensor]:
    return mixing.metropolis_mean if neighbours == "metropolis" else mixing.closed_mean


def neighbour_weights(mixing: Mixing, neighbours: Neighbours) -> Links:
    """Those of `neighbour_mean`, the own message's among them."""
    if neighbours == "metropolis":
        return mixing.metropolis
    closed, voters = mixing.closed, mixing.closed_voters.cpu().numpy()  # [A]
    return closed.weighted(closed.strengths / voters[closed.receivers])


def holders_mean(mixing: Mixing, values: Tensor, held: Tensor, nobody: Tensor | float) -> Tensor:
    """Σ_j x_j / Σ_j h_j over N_i ∪ {i}, and `nobody` where no one holds an entry: [K, P_w] -> [A, P_w]."""
    holders = mixing.count_closed(held)  # [A, P_w]
    mean = mixing.sum_closed(values) / holders.clamp(min=1)
    return torch.where(holders > 0, mean, nobody)
