"""Masks for a second agent that stay as near as they can to the first agent's.

Solving each agent's subset sums to the last digit picks unrelated subsets for nearly equal weights. But many
subsets are good enough. Here agent 2 starts from agent 1's mask and, for each target weight, flips the fewest
entries that bring its own weight within a tolerance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from peermask.errors import ConfigError
from peermask.theory.construct import layer_masks, products, subsets
from peermask.theory.random_net import Masks, RandomNet
from peermask.theory.subset_sum import closest_subsets
from peermask.theory.target import Target

MOST_FLIPS = 3
PROBLEMS_AT_ONCE = 64


def construct_near(net: RandomNet, target: Target, start: Masks, tolerance: float) -> Masks:
    """A mask for `target` near `start`: every target weight is met within `tolerance`, or as well as can be."""
    if not tolerance > 0:
        raise ConfigError(f"tolerance {tolerance:g} per weight; it must be above 0")
    masks: list[Tensor] = []
    starts = subsets(net, start)
    for (first, second), weight, begin in zip(net.blocks(), target.layers, starts, strict=True):
        items, usable = products(first, second)  # [P, n]
        kept = nearest_subsets(items, usable, weight.flatten(), begin, tolerance)
        masks += layer_masks(kept, first, second)
    return tuple(masks)


def nearest_subsets(items: Tensor, usable: Tensor, targets: Tensor, start: Tensor, tolerance: float) -> Tensor:
    """items, usable, start [P, n], targets [P] -> kept [P, n]: at most three flips, else the closest subset."""
    kept = closest_subsets(items, usable, targets[:, None])[:, 0]  # [P, n]
    missing = targets - (items * start).sum(1)  # [P]
    done = missing.abs() <= tolerance  # without a flip
    kept[done] = start[done]
    effect = torch.where(usable, items * (1 - 2 * start.to(items.dtype)), torch.inf)  # of flipping an entry
    for flips in range(1, MOST_FLIPS + 1):
        choices = torch.combinations(torch.arange(items.shape[1]), flips)  # [c, flips]
        if not len(choices):
            break
        for rows in (~done).nonzero()[:, 0].split(PROBLEMS_AT_ONCE):
            error = (missing[rows, None] - effect[rows][:, choices].sum(-1)).abs()  # [r, c]
            best = error.min(1)
            good = best.values <= tolerance
            flipped = start[rows[good]].clone()
            chosen = choices[best.indices[good]]  # [r', flips]
            kept[rows[good]] = flipped ^ torch.zeros_like(flipped).scatter(1, chosen, True)
            done[rows[good]] = True
    return kept
