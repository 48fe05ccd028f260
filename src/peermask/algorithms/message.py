"""Parameter vectors as messages, and messages mixed back into vectors.

A vector travels as two leaves, `weights` [P_w] and `rest` [P - P_w] (biases and norms), so that a mask that
travels with it covers the weights exactly and the codec need not send positions twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peermask.algorithms.contract import Algorithm, Clock
from peermask.graph.links import Links
from peermask.graph.mixing import Mixing
from peermask.wire.schema import Payload

# Shapes: A receivers, K received messages, P_w masked weights, P all parameters

Neighbours = Literal["metropolis", "closed"]


def as_message(params: Tensor, weights: int) -> Payload:
    """[A, P] -> its leaves; `rest` is left out by a network without biases."""
    leaves = {"weights": params[:, :weights], "rest": params[:, weights:]}
    return {name: leaf for name, leaf in leaves.items() if leaf.shape[1]}


def as_params(payload: Payload) -> Tensor:
    """The inverse of `as_message`."""
    return mix(payload, lambda leaf: leaf)


def mix(received: Payload, mean: Callable[[Tensor], Tensor]) -> Tensor:
    """The same mean of every leaf, as one vector: [K, ...] -> [A, P]."""
    return torch.cat([mean(received[name]) for name in ("weights", "rest") if name in received], dim=1)


def mix_rest(weights: Tensor, received: Payload, mean: Callable[[Tensor], Tensor]) -> Tensor:
    """Weights that were mixed separately, and a mean of everything else."""
    return torch.cat([weights, mean(received["rest"])], dim=1) if "rest" in received else weights  # [A, P]


def neighbour_mean(mixing: Mixing, neighbours: Neighbours) -> Callable[[Tensor], Tensor]:
    return mixing.metropolis_mean if neighbours == "metropolis" else mixing.closed_mean


def neighbour_weights(mixing: Mixing, neighbours: Neighbours) -> Links:
    """Weights of `neighbour_mean`, the own message's among them."""
    if neighbours == "metropolis":
        return mixing.metropolis
    closed, voters = mixing.closed, mixing.closed_voters.cpu().numpy()  # [A]
    return closed.weighted(closed.strengths / voters[closed.receivers])


def holders_mean(mixing: Mixing, values: Tensor, held: Tensor, nobody: Tensor | float) -> Tensor:
    """Σ_j x_j / Σ_j h_j over N_i ∪ {i}, and `nobody` where no one holds an entry: [K, P_w] -> [A, P_w]."""
    holders = mixing.count_closed(held)  # [A, P_w]
    mean = mixing.sum_closed(values) / holders.clamp(min=1)
    return torch.where(holders > 0, mean, nobody)


# A mean of models in which no neighbour counts for more than a bounded step (clipped gossip).
#
#     d_ij = ‖x_j − x_i‖          τ_i = c · the lower median of d_ij over the neighbours
#     x_i  ← x_i + Σ_j W_ij min(1, τ_i / d_ij) (x_j − x_i)
#
# A model that is nearer than τ_i counts in full; one that is farther, as if it lay at τ_i on the line to it. So a liar
# moves its neighbours no farther than an honest agent would, as long as half of them are honest. The lower median is
# the distance within which half of all neighbours lie: with two neighbours, that of the nearer one.
#
# Factors on differences are weights again, W_ij min(1, τ_i / d_ij) and the rest of 1 on the own model, so that the mean
# itself is computed as every other is.

# Shapes: A receivers, K received messages, E links


def clip_messages(weights: Links, received: Payload, mixing: Mixing, factor: float) -> Links:
    """The weights of links and own messages, every neighbour's clipped by its distance over all leaves [K, ...]."""
    links = mixing.links
    distance = np.sqrt(sum(_squared_distances(leaf, mixing) for leaf in received.values()))  # [E]
    limit = factor * lower_medians(distance, links)[links.receivers]  # [E]
    with np.errstate(divide="ignore", invalid="ignore"):
        shortened = np.where(distance > limit, limit / distance, 1.0)
    is_own = weights.senders == mixing.own[weights.receivers]  # all others are the links, in the same order
    changed = weights.strengths.astype(np.float64)
    changed[~is_own] *= shortened
    changed[is_own] = 1.0 - np.bincount(links.receivers, changed[~is_own], len(links))
    return weights.weighted(changed)


def lower_medians(values: NDArray[np.float64], links: Links) -> NDArray[np.float64]:
    """[A]: of the values [E] of each receiver's links, the middle one, or the smaller of the middle two; 0 for none."""
    order = np.lexsort((values, links.receivers))
    middle = links.starts[:-1] + (np.diff(links.starts) - 1).clip(min=0) // 2  # [A]
    found = np.append(values[order], 0.0)[middle.clip(max=len(values))]
    return np.where(np.diff(links.starts) > 0, found, 0.0)


def _squared_distances(values: Tensor, mixing: Mixing) -> NDArray[np.float64]:
    """‖x_j − x_i‖² on every link, [E]."""
    squares = []
    for own, senders in zip(mixing.own.tolist(), mixing.links.lists, strict=True):
        # One after the other: the sum then does not depend on other messages.
        squares += [(values[j] - values[own]).square().sum() for j in senders]
    return torch.stack(squares).double().cpu().numpy() if squares else np.zeros(0)


# Messages in half precision: real values travel as float16, and are float32 again where they are used. Masks stay as
# they are. An agent's own message is rounded for itself, too: all agents use the same values.


class HalfPrecision:
    """An algorithm with float16 messages; everything else is that algorithm's.

    Values beyond ±65,504 become infinite, which the codec reports as it reports a run that diverges.
    """

    def __init__(self, algorithm: Algorithm[Any]) -> None:
        self.algorithm = algorithm

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["algorithm"], name)

    def share(self, state: Any) -> Payload:
        return _convert_leaves(self.algorithm.share(state), torch.float32, torch.float16)

    def fuse(self, state: Any, received: Payload, mixing: Mixing, clock: Clock) -> Any:
        return self.algorithm.fuse(state, _convert_leaves(received, torch.float16, torch.float32), mixing, clock)

    def join(self, state: Any, received: Payload, mixing: Mixing) -> Any:
        return self.algorithm.join(state, _convert_leaves(received, torch.float16, torch.float32), mixing)

    def unmixed_model(self, payload: Payload) -> Tensor | None:
        return self.algorithm.unmixed_model(_convert_leaves(payload, torch.float16, torch.float32))


def _convert_leaves(payload: Payload, before: torch.dtype, after: torch.dtype) -> Payload:
    return {name: leaf.to(after) if leaf.dtype == before else leaf for name, leaf in payload.items()}
