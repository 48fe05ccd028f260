"""Theorem 1's bounds, certified bounds, what is measured between them, and how much two masks have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from peermask.paper.theory.construct import construct_masks, products, subsets
from peermask.paper.theory.networks import Layers, Masks, RandomNet, Target, forward, outputs, require_unit_inputs
from peermask.streams import stream

# Bounds on how far the agents' subnetworks are apart. With ε = ε_1 + ε_2 and α_l <= ‖f_1(x) - f_2(x)‖_max <= α_u for
# every x, the triangle inequality gives
#
#     sup ‖g_m1 - g_m2‖_max <= ε + α_u                                                (25)
#     inf ‖g_m1 - g_m2‖_max >= max(0, α_l - ε)                                        (26, the valid form)
#
# The paper prints min{|ε - α_l|, |ε - α_u|, |α_l|} for the latter. Where ε <= α_l that is the same number. Where
# ε > α_l it claims a distance that nothing guarantees; `counterexample` builds a case in which it fails.

SLACK = 1e-12  # rounding: the bounds hold exactly for real numbers


@dataclass(frozen=True)
class Distances:
    """The theorem's distances, over one set of inputs 𝒳."""

    inputs: int  # how many
    eps1: float  # sup ‖f_1 - g_m1‖_max     (23)
    eps2: float  # sup ‖f_2 - g_m2‖_max     (24)
    alpha_l: float  # inf ‖f_1 - f_2‖_max   Assumption 3
    alpha_u: float  # sup ‖f_1 - f_2‖_max
    inf: float  # inf ‖g_m1 - g_m2‖_max
    sup: float  # sup ‖g_m1 - g_m2‖_max

    @property
    def eps(self) -> float:
        return self.eps1 + self.eps2

    @property
    def upper(self) -> float:
        """Equation (25)."""
        return self.eps + self.alpha_u

    @property
    def lower(self) -> float:
        """Equation (26) in the form the triangle inequality gives."""
        return max(0.0, self.alpha_l - self.eps)

    @property
    def lower_printed(self) -> float:
        """Equation (26) as printed; implied only where `printed_is_implied`."""
        return min(abs(self.eps - self.alpha_l), abs(self.eps - self.alpha_u), abs(self.alpha_l))

    @property
    def printed_is_implied(self) -> bool:
        return self.eps <= self.alpha_l

    @property
    def upper_holds(self) -> bool:
        return self.sup <= self.upper + SLACK

    @property
    def lower_holds(self) -> bool:
        return self.inf >= self.lower - SLACK

    @property
    def printed_holds(self) -> bool:
        return self.inf >= self.lower_printed - SLACK


# Certified bound. A maximum over samples can only underestimate a supremum; this bounds it from above. Let z be an
# activation of f with 0 <= z_c <= hi_c, and ẑ that of h with |ẑ_c - z_c| <= e_c. With Δ = h - f (same layer),
#
#     h * ẑ - f * z = Δ * z + h * (ẑ - z),
#     |·|_o <= max(Σ_c ‖Δ⁺_oc‖_1 hi_c, Σ_c ‖Δ⁻_oc‖_1 hi_c) + Σ_c ‖h_oc‖_1 e_c,
#
# the first term because z is non-negative; the ReLU does not increase a distance, and max_o of the last layer
# bounds sup_x ‖f(x) - h(x)‖_max. For a single layer it is attained.


def certified_distance(f: Layers, h: Layers) -> float:
    """An upper bound of sup over x in [0, 1]^(D x D x C) of ‖f(x) - h(x)‖_max, for two networks of form (20)."""
    high = torch.ones(f[0].shape[1], dtype=torch.float64)  # [C] bound of f's activation
    error = torch.zeros_like(high)  # [C] bound of the distance so far
    for mine, other in zip(f, h, strict=True):
        delta = other - mine  # [O, C, d, d]
        above = delta.clamp(min=0).sum((2, 3)) @ high  # [O]
        below = (-delta).clamp(min=0).sum((2, 3)) @ high
        error = torch.maximum(above, below) + other.abs().sum((2, 3)) @ error
        high = mine.clamp(min=0).sum((2, 3)) @ high
    return float(error.max())


CLIMB_FROM = 16  # the worst inputs found so far
CLIMB_STEPS = 40
FIRST_STEP = 0.25


def distances(f: tuple[Layers, Layers], g: tuple[Layers, Layers], images: Tensor) -> Distances:
    """All six quantities over `images`; g holds the masked layers of g_m1 and g_m2.

    A maximum over finitely many inputs is a lower estimate of the supremum over the cube, a minimum an upper
    estimate of the infimum. The bounds themselves hold on every set of inputs, hence on this one.
    """
    images = require_unit_inputs(images, f[0][0].shape[1])
    f1, f2 = outputs(f[0], images), outputs(f[1], images)  # [N, O, D, D]
    g1, g2 = outputs(g[0], images), outputs(g[1], images)
    alpha, apart = max_norms(f1 - f2), max_norms(g1 - g2)  # [N]
    return Distances(
        inputs=len(images),
        eps1=float(max_norms(f1 - g1).max()),
        eps2=float(max_norms(f2 - g2).max()),
        alpha_l=float(alpha.min()),
        alpha_u=float(alpha.max()),
        inf=float(apart.min()),
        sup=float(apart.max()),
    )


def max_norms(maps: Tensor) -> Tensor:
    """‖·‖_max of each output: [N, O, D, D] -> [N]."""
    return maps.abs().amax((1, 2, 3))


def random_inputs(shape: tuple[int, ...], count: int, seed: int) -> Tensor:
    """Half uniform in the cube, half at its corners, where a function of this kind tends to be largest."""
    channels, height, width = shape
    draws = stream(seed, "theory/inputs").uniform(count * channels * height * width)
    images = torch.from_numpy(draws).reshape(count, channels, height, width)
    corners = torch.arange(count) % 2 == 1
    images[corners] = (images[corners] < 0.5).double()
    return images  # [count, C, D, D]


def climb(f: Layers, g: Layers, images: Tensor) -> float:
    """A better lower estimate of sup ‖f - g‖_max: signed gradient ascent inside the cube from the worst inputs."""
    worst = max_norms(outputs(f, images) - outputs(g, images)).topk(min(CLIMB_FROM, len(images)))
    best, point = float(worst.values.max()), images[worst.indices].clone()
    for step in range(CLIMB_STEPS):
        point.requires_grad_(True)
        errors = max_norms(forward(f, point) - forward(g, point))  # [CLIMB_FROM]
        best = max(best, float(errors.detach().max()))
        (slope,) = torch.autograd.grad(errors.sum(), point)
        size = FIRST_STEP * (1 - step / CLIMB_STEPS)
        point = (point.detach() + size * slope.sign()).clamp(0.0, 1.0)
    return max(best, float(max_norms(outputs(f, point) - outputs(g, point)).max()))


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
    def jaccard_by_chance(self) -> float:
        return self.chance / max(1.0, self.kept1 + self.kept2 - self.chance)

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
    return distances((f1.layers, f2.layers), (g.masked(m1), g.masked(m2)), _kernel(1.0))


def _kernel(value: float) -> Tensor:
    return torch.full((1, 1, 1, 1), value, dtype=torch.float64)
