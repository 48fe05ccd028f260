"""How much two agents' masks of one g have in common, next to what chance would give."""

from __future__ import annotations

import math
from dataclasses import dataclass

from peermask.theory.construct import products, subsets
from peermask.theory.random_net import Masks, RandomNet


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
