"""Two agents' masks of one g: the nearest ones, their overlap, and a counterexample to bound (26)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from peermask.errors import ConfigError
from peermask.paper.theory.bounds import Distances, distances
from peermask.paper.theory.construct import closest_subsets, construct_masks, layer_masks, products, subsets
from peermask.paper.theory.networks import Masks, RandomNet, Target

# Solving each agent's subset sums to the last digit picks unrelated subsets for nearly equal weights. But many
# subsets are good enough. Here agent 2 starts from agent 1's mask and, for each target weight, flips the fewest
# entries that bring its own weight within a tolerance.

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


@dataclass(frozen=True)
class Overlap:
    """Counts over the d x d layers, where the choice is made; the 1 x 1 masks only follow it.

    `chance` is the overlap expected of two agents who keep as many products of each target weight as these do,
    but pick them blindly from the usable ones: Σ_p a_p b_p / k_p, and `spread` is its standard deviation (the
    hypergeometric law). `chance_anywhere` lets the blind agents pick from all entries, usable or not.
    """

    entries: int
    usable: int
    kept1: int
    kept2: int
    both: int
    chance: float
    spread: float

    @property
    def chance_anywhere(self) -> float:
        return self.kept1 * self.kept2 / self.entries

    @property
    def jaccard(self) -> float:
        """Shared entries among those that either keeps."""
        either = self.kept1 + self.kept2 - self.both
        return self.both / either if either else 1.0

    @property
    def sigmas(self) -> float:
        """How many standard deviations the overlap is above chance."""
        return (self.both - self.chance) / self.spread if self.spread else 0.0


def overlap(net: RandomNet, m1: Masks, m2: Masks) -> Overlap:
    entries = usable_count = kept1 = kept2 = both = 0
    chance = variance = 0.0
    blocks = zip(net.blocks(), subsets(net, m1), subsets(net, m2), strict=True)
    for (first, second), mine, other in blocks:  # mine, other: [P, n] bool
        size = products(first, second)[1].sum(1).double()  # [P] k_p
        a, b = mine.sum(1).double(), other.sum(1).double()
        filled = size > 0
        size, a, b = size[filled], a[filled], b[filled]
        chance += float((a * b / size).sum())
        spread = a * b * (size - a) * (size - b) / (size**2 * (size - 1).clamp(min=1))
        variance += float(spread.sum())
        entries += first.numel()
        usable_count += int(size.sum())
        kept1, kept2 = kept1 + int(mine.sum()), kept2 + int(other.sum())
        both += int((mine & other).sum())
    return Overlap(entries, usable_count, kept1, kept2, both, chance, math.sqrt(variance))


# Counterexample to bound (26) as printed. One layer, one channel, 1 x 1 kernels, and g of width 1 with w_1 = w_2 = 1/2.
# Its subnetworks are 0 and x/4. For f_1(x) = x/10 and f_2(x) = x/20 the nearest of them is 0, so m_1 = m_2. At x = 1:
# ε_1 + ε_2 = 0.15 > α_l = 0.05, the printed bound promises a distance of at least min{0.1, 0.1, 0.05} = 0.05, and the
# distance is 0.


def counterexample() -> Distances:
    """The case above, with its masks constructed and its distances measured like any other."""
    g = RandomNet((_kernel(0.5), _kernel(0.5)), width=1)
    f1, f2 = Target((_kernel(0.1),)), Target((_kernel(0.05),))
    m1, m2 = construct_masks(g, [f1, f2])
    return distances("counterexample", (f1.layers, f2.layers), (g.masked(m1), g.masked(m2)), _kernel(1.0))


def _kernel(value: float) -> Tensor:
    return torch.full((1, 1, 1, 1), value, dtype=torch.float64)
