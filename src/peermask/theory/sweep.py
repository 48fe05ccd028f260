"""The error against the width: many draws of g, at many widths, for one pair of targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from peermask.theory.agents import AgentData, all_images
from peermask.theory.certificate import certified_distance
from peermask.theory.construct import collapse, construct_masks, out_of_reach
from peermask.theory.measure import distances
from peermask.theory.overlap import overlap
from peermask.theory.random_net import draw
from peermask.theory.target import Target
from peermask.theory.training import accuracy

IMAGES = 128  # of the agents' data, for the measured columns; the certificate needs none


@dataclass(frozen=True)
class Trial:
    """One draw of g and the two masks built in it."""

    width: int
    seed: int
    certified: tuple[float, float]  # no input of the cube has a larger error
    measured: tuple[float, float]  # the largest error seen
    out_of_reach: int  # target weights of either agent that no subset reaches
    accuracy: tuple[float, float]  # of g_m on each agent's test images
    lower_holds: bool
    printed_holds: bool
    printed_is_implied: bool
    jaccard: float
    jaccard_chance: float

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
    seen = distances("agents' data", f, g, images)
    common = overlap(net, m1, m2)
    blind = common.chance / max(1.0, common.kept1 + common.kept2 - common.chance)
    return Trial(
        width=width,
        seed=seed,
        certified=(certified_distance(f[0], g[0]), certified_distance(f[1], g[1])),
        measured=(seen.eps1, seen.eps2),
        out_of_reach=sum(out_of_reach(net, target) for target in targets),
        accuracy=(accuracy(g[0], agents[0].test), accuracy(g[1], agents[1].test)),
        lower_holds=seen.lower_holds,
        printed_holds=seen.printed_holds,
        printed_is_implied=seen.printed_is_implied,
        jaccard=common.jaccard,
        jaccard_chance=blind,
    )
