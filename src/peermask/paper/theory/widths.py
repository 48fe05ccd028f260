"""The error against the width of g, and the lemma's constant that it supports."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
from torch import Tensor

from peermask.paper.theory.construct import collapse, construct_masks, out_of_reach
from peermask.paper.theory.measures import Distances, Overlap, certified_distance, distances, overlap
from peermask.paper.theory.networks import AgentData, Target, accuracy, all_images, draw

IMAGES = 128  # of the agents' data, for the measured columns; the certificate needs none


@dataclass(frozen=True)
class Trial:
    """One draw of g and the two masks built in it."""

    width: int
    seed: int
    certified: tuple[float, float]  # no input of the cube has a larger error
    seen: Distances  # on the agents' data
    out_of_reach: int  # target weights of either agent that no subset reaches
    accuracy: tuple[float, float]  # of g_m on each agent's test images
    common: Overlap

    @property
    def worst(self) -> float:
        return max(self.certified)


def sweep(
    targets: tuple[Target, Target],
    agents: tuple[AgentData, AgentData],
    widths: Sequence[int],
    seeds: Sequence[int],
    pool: Executor,
    said: Callable[[str], None],
) -> list[Trial]:
    """A trial for each width and seed, side by side in `pool`; the order is that of the arguments."""
    images = all_images(agents)
    images = images[:: max(1, len(images) // IMAGES)]
    trials: list[Trial] = []
    for width in widths:
        said(f"width {width}: {len(seeds)} draws of g")
        trials += pool.map(partial(_trial, targets, agents, images, width), seeds)
    return trials


def _trial(
    targets: tuple[Target, Target], agents: tuple[AgentData, AgentData], images: Tensor, width: int, seed: int
) -> Trial:
    net = draw(targets[0], width, seed)
    m1, m2 = construct_masks(net, targets)
    f = (targets[0].layers, targets[1].layers)
    g = (collapse(net, m1), collapse(net, m2))  # the same function as g_m, in a fraction of the time
    return Trial(
        width=width,
        seed=seed,
        certified=(certified_distance(f[0], g[0]), certified_distance(f[1], g[1])),
        seen=distances(f, g, images),
        out_of_reach=sum(out_of_reach(net, target) for target in targets),
        accuracy=(accuracy(g[0], agents[0].test), accuracy(g[1], agents[1].test)),
        common=overlap(net, m1, m2),
    )


# Lemma 1 asks for I_l >= C · O_l · ln(O_{l-1} O_l d_l^2 L / min{ε, δ}) and promises (22), an error of at most ε with
# probability at least 1 - δ, for some constant C that it does not give. With n = I_l / O_l and M the largest
# O_{l-1} O_l d_l^2 L, it promises at width n
#
#     success >= 1 - M exp(-n / C)      wherever n >= C ln(M / ε),        nothing elsewhere.

Z95 = 1.959964  # two-sided 95 %


@dataclass(frozen=True)
class Success:
    """How often both agents' certified error was at most eps, at one width."""

    width: int
    eps: float
    successes: int
    trials: int

    @property
    def rate(self) -> float:
        return self.successes / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the true probability."""
        n, p = self.trials, self.rate
        middle = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        half = Z95 / (1 + Z95**2 / n) * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
        return max(0.0, middle - half), min(1.0, middle + half)


def successes(trials: Sequence[Trial], levels: Sequence[float]) -> list[Success]:
    table: list[Success] = []
    for eps in levels:
        for width in sorted({trial.width for trial in trials}):
            worst = [trial.worst for trial in trials if trial.width == width]
            table.append(Success(width, eps, sum(error <= eps for error in worst), len(worst)))
    return table


def needed_width(constant: float, problems: int, eps: float, delta: float) -> float:
    """n = I_l / O_l that the lemma asks for: C ln(M / min{ε, δ})."""
    return constant * math.log(problems / min(eps, delta))


def promised(width: float, constant: float, problems: int, eps: float) -> float:
    """The success probability the lemma promises at this width, for this constant."""
    if width <= constant * math.log(problems / eps):
        return 0.0
    return max(0.0, 1.0 - problems * math.exp(-width / constant))


def estimate_constant(table: Sequence[Success], problems: int) -> float:
    """The least C above which no measured success rate is below the promise.

    A row of rate p < 1 contradicts the promise unless n < C ln(M / ε) or 1 - M exp(-n / C) <= p, that is unless
    C >= n / ln(M / min{ε, 1 - p}).
    """
    return max(
        (row.width / math.log(problems / min(row.eps, 1 - row.rate)) for row in table if row.rate < 1), default=0.0
    )


def decay_rate(trials: Sequence[Trial], below: float) -> float:
    """ρ of the fit ε ~ exp(-ρ n) through the median error of each width, once it is under `below`.

    The best possible is set by the number of usable products k, one bit each: about n/2 of n, so ln(2)/2 = 0.347
    if every weight had its n/2, and ln(4/3) = 0.288 for the mean of 2^-k over k ~ Binomial(n, 1/2).
    """
    widths = sorted({trial.width for trial in trials})
    centre = {w: median(trial.worst for trial in trials if trial.width == w) for w in widths}
    used = [w for w in widths if centre[w] < below]
    if len(used) < 2:
        return math.nan
    return float(-np.polyfit(used, [math.log(centre[w]) for w in used], 1)[0])
