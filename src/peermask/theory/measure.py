"""Measuring the theorem's quantities on inputs: errors, distances, and gradient ascent towards the true supremum."""

from __future__ import annotations

import torch
from torch import Tensor

from peermask.streams import stream
from peermask.theory.bounds import Distances
from peermask.theory.network import Layers, forward, outputs, require_unit_inputs

CLIMB_FROM = 16  # the worst inputs found so far
CLIMB_STEPS = 40
FIRST_STEP = 0.25


def distances(where: str, f: tuple[Layers, Layers], g: tuple[Layers, Layers], images: Tensor) -> Distances:
    """All six quantities over `images`; g holds the masked layers of g_m1 and g_m2.

    A maximum over finitely many inputs is a lower estimate of the supremum over the cube, a minimum an upper
    estimate of the infimum. The bounds themselves hold on every set of inputs, hence on this one.
    """
    images = require_unit_inputs(images, f[0][0].shape[1])
    f1, f2 = outputs(f[0], images), outputs(f[1], images)  # [N, O, D, D]
    g1, g2 = outputs(g[0], images), outputs(g[1], images)
    alpha, apart = max_norms(f1 - f2), max_norms(g1 - g2)  # [N]
    return Distances(
        where=where,
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
