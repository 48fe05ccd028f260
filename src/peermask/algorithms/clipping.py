"""A mean of models in which no neighbour counts for more than a bounded step (clipped gossip).

    d_ij = ‖x_j − x_i‖          τ_i = c · the lower median of d_ij over the neighbours
    x_i  ← x_i + Σ_j W_ij min(1, τ_i / d_ij) (x_j − x_i)

A model that is nearer than τ_i counts in full; one that is farther, as if it lay at τ_i on the line to it. So a liar
moves its neighbours no farther than an honest agent would, as long as half of them are honest. The lower median is the
distance within which half of all neighbours lie: with two neighbours, that of the nearer one.

Factors on differences are weights again, W_ij min(1, τ_i / d_ij) and the rest of 1 on the own model, so that the mean
itself is computed as every other is.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peermask.algorithms.contract import Payload
from peermask.graph.links import Links
from peermask.graph.mixing import Mixing

# Shapes: A receivers, K received messages, E links


def clipped(weights: Links, received: Payload, mixing: Mixing, factor: float) -> Links:
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
