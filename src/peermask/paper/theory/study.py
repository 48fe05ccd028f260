"""The whole study behind `peermask theory`: train two targets, draw g, build the masks, measure everything."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from peermask.compute.device import one_thread_each
from peermask.data.digits import digits
from peermask.paper.theory import measures, networks
from peermask.paper.theory.construct import collapse, construct_masks, construct_near
from peermask.paper.theory.measures import Distances, Overlap
from peermask.paper.theory.networks import CLASSES, AgentData, Masks, RandomNet, Target
from peermask.paper.theory.widths import Success, Trial, decay_rate, estimate_constant, successes, sweep

LEVELS = (1e-1, 1e-2, 1e-3, 1e-4)  # the ε for which success is counted
TOLERANCES = (1e-2, 1e-3, 1e-4)  # per weight, for masks kept near each other
FITTED_BELOW = 2e-2  # the exponential fall sets in below the size of the outputs themselves
SHARED = 1  # labels the two agents of the main pair have in common


@dataclass(frozen=True)
class Scale:
    channels: tuple[int, ...]  # O_0, ..., O_L
    side: int  # d
    steps: int  # of training, per target
    width: int  # n = I_l / O_l of the main g
    widths: tuple[int, ...]  # of the sweep
    draws: int  # of g, at each width
    pairs: int  # of agents, at each number of shared labels
    random_inputs: int


FULL = Scale((1, 4, 4, CLASSES), 3, 200, 48, tuple(range(4, 49, 4)), 40, 5, 4000)
QUICK = Scale((1, 4, 4, CLASSES), 3, 120, 40, tuple(range(8, 41, 8)), 8, 1, 500)


@dataclass(frozen=True)
class Pair:
    """Theorem 1 for one pair of agents and one g."""

    labels: tuple[tuple[int, ...], tuple[int, ...]]
    seen: tuple[Distances, ...]  # on the agents' data, on random inputs
    climbed: tuple[float, float]  # ε_1, ε_2: the largest found by ascent
    certified: tuple[float, float]  # ε_1, ε_2: no input exceeds them
    certified_alpha: float  # α_u: no input exceeds it
    target_accuracy: tuple[float, float]
    mask_accuracy: tuple[float, float]
    kept: tuple[float, float]  # the fraction of g's entries that each mask keeps
    untouched: bool  # g's weights are bit for bit what was drawn
    common: Overlap


@dataclass(frozen=True)
class Near:
    """Agent 2's mask when it stays near agent 1's."""

    tolerance: float
    certified: float
    accuracy: float
    common: Overlap


@dataclass(frozen=True)
class Correlated:
    """One pair of agents of the study of shared labels."""

    shared: int
    seed: int
    seen: Distances


@dataclass(frozen=True)
class Study:
    scale: Scale
    seed: int
    problems: int  # M, the count in the lemma's logarithm
    weights: int  # of a target
    pair: Pair
    near: tuple[Near, ...]
    correlated: tuple[Correlated, ...]
    trials: tuple[Trial, ...]
    successes: tuple[Success, ...]
    constant: float  # estimate of the lemma's C
    rate: float  # ρ of ε ~ exp(-ρ n)
    counterexample: Distances


def run_study(scale: Scale, seed: int, said: Callable[[str], None]) -> Study:
    """Everything `peermask theory` reports; `said` is called as each step begins."""
    with (
        one_thread_each(),
        ThreadPoolExecutor(os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        said(f"training two targets on {SHARED} shared label(s)")
        agents = networks.two_agents(digits(), SHARED)
        targets = _targets(scale, agents, seed)
        said(f"building both masks at width {scale.width}")
        pair, near = _pair(scale, agents, targets, seed)
        trials = sweep(targets, agents, scale.widths, range(seed, seed + scale.draws), pool, said)
        table = successes(trials, LEVELS)
        return Study(
            scale=scale,
            seed=seed,
            problems=targets[0].problems,
            weights=targets[0].weights,
            pair=pair,
            near=near,
            correlated=_correlated(scale, seed, pool, said),
            trials=tuple(trials),
            successes=tuple(table),
            constant=estimate_constant(table, targets[0].problems),
            rate=decay_rate(trials, FITTED_BELOW),
            counterexample=measures.counterexample(),
        )


def _targets(scale: Scale, agents: tuple[AgentData, AgentData], seed: int) -> tuple[Target, Target]:
    start = networks.initial(scale.channels, scale.side, seed)
    return networks.train(start, agents[0].train, scale.steps), networks.train(start, agents[1].train, scale.steps)


def _pair(
    scale: Scale, agents: tuple[AgentData, AgentData], targets: tuple[Target, Target], seed: int
) -> tuple[Pair, tuple[Near, ...]]:
    net = networks.draw(targets[0], scale.width, seed)
    drawn = net.fingerprint()
    m1, m2 = construct_masks(net, targets)
    f = (targets[0].layers, targets[1].layers)
    g = (net.masked(m1), net.masked(m2))
    plain = (collapse(net, m1), collapse(net, m2))
    images = networks.all_images(agents)
    noise = measures.random_inputs(digits().shape, scale.random_inputs, seed)
    everything = torch.cat([images, noise])
    entries = sum(weight.numel() for weight in net.layers)
    pair = Pair(
        labels=(agents[0].labels, agents[1].labels),
        seen=(measures.distances(f, g, images), measures.distances(f, g, noise)),
        climbed=(measures.climb(f[0], plain[0], everything), measures.climb(f[1], plain[1], everything)),
        certified=(measures.certified_distance(f[0], plain[0]), measures.certified_distance(f[1], plain[1])),
        certified_alpha=measures.certified_distance(*f),
        target_accuracy=(networks.accuracy(f[0], agents[0].test), networks.accuracy(f[1], agents[1].test)),
        mask_accuracy=(networks.accuracy(g[0], agents[0].test), networks.accuracy(g[1], agents[1].test)),
        kept=(sum(int(m.sum()) for m in m1) / entries, sum(int(m.sum()) for m in m2) / entries),
        untouched=net.fingerprint() == drawn,
        common=measures.overlap(net, m1, m2),
    )
    return pair, tuple(_near(net, targets[1], agents[1], m1, tolerance) for tolerance in TOLERANCES)


def _near(net: RandomNet, target: Target, agent: AgentData, start: Masks, tolerance: float) -> Near:
    mask = construct_near(net, target, start, tolerance)
    layers = collapse(net, mask)
    error = measures.certified_distance(target.layers, layers)
    return Near(tolerance, error, networks.accuracy(layers, agent.test), measures.overlap(net, start, mask))


def _correlated(scale: Scale, seed: int, pool: Executor, said: Callable[[str], None]) -> tuple[Correlated, ...]:
    """Pairs that share 0, 1, ... all labels: are the subnetworks as alike as the data?"""
    rows: list[Correlated] = []
    for shared in range(CLASSES // 2 + 1):
        said(f"{scale.pairs} pair(s) of agents with {shared} shared label(s)")
        agents = networks.two_agents(digits(), shared)
        rows += pool.map(partial(_one_pair, scale, agents, shared), range(seed, seed + scale.pairs))
    return tuple(rows)


def _one_pair(scale: Scale, agents: tuple[AgentData, AgentData], shared: int, seed: int) -> Correlated:
    targets = _targets(scale, agents, seed)
    net = networks.draw(targets[0], scale.width, seed)
    m1, m2 = construct_masks(net, targets)
    f = (targets[0].layers, targets[1].layers)
    g = (collapse(net, m1), collapse(net, m2))
    return Correlated(shared, seed, measures.distances(f, g, networks.all_images(agents)))
