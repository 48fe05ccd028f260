"""Gradient descent: the learning rate over a run, momentum, real-valued parameters, and their pruning."""

from __future__ import annotations

from math import cos, pi
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from peermask import registry
from peermask.algorithms.contract import Agents, Clock, LocalData, Setting
from peermask.compute.network import Batch
from peermask.masks.masker import Masker

Schedule = Literal["constant", "cosine"]


def learning_rate(lr: float, schedule: Schedule, clock: Clock, start: float = 0.0) -> float | Tensor:
    """η, or η (1 + cos(π k / T)) / 2, where k and T are counted from `start`, a share of all rounds."""
    if schedule == "constant":
        return lr
    return clock.varying(lambda progress: 0.5 * lr * (1.0 + cos(pi * max(0.0, progress - start) / (1.0 - start))))


# Momentum: gradients summed over rounds, older ones ever less. The paper has none; it is off unless asked for.


def first_velocity(like: Tensor, momentum: float) -> Tensor | None:
    """u = 0, or nothing to carry where momentum is off."""
    return torch.zeros_like(like) if momentum else None


def add_momentum(gradient: Tensor, velocity: Tensor | None, momentum: float) -> Tensor:
    """u ← β u + g, and g itself where momentum is off."""
    return gradient if velocity is None else momentum * velocity + gradient


class DescentOptions(registry.Options):
    """What every method that trains real values has in common."""

    lr: Annotated[float, Field(gt=0)] = Field(0.01, description="η, step size of the parameters")
    schedule: Schedule = Field("constant", description="how η changes over the run")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="ω, on the parameters")


class MomentumOptions(DescentOptions):
    """The same with momentum, which the paper has not: off unless asked for."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="β, how much of the last round's g is kept")


def common_start(masker: Masker, agents: Agents) -> Tensor:
    """x^0: the weights that mask methods freeze, and that these train. The same for all agents."""
    return masker.frozen.to(agents.keep.device).repeat(len(agents.ids), 1)  # [P] -> [A, P]


def descent(params: Tensor, gradient: Tensor, options: DescentOptions, clock: Clock) -> Tensor:
    """η (g + ω x): what a step takes away."""
    direction = gradient + options.weight_decay * params if options.weight_decay else gradient
    return learning_rate(options.lr, options.schedule, clock) * direction  # [A, P]


def momentum_step(
    setting: Setting, params: Tensor, velocity: Tensor | None, batch: Batch, options: MomentumOptions, clock: Clock
) -> tuple[Tensor, Tensor | None, Tensor]:
    """η (u + ω x), where u ← β u + ∇f(x): what a step takes away, u where momentum is on, and losses [A]."""
    gradient, loss = setting.network.gradient(params, batch)
    summed = add_momentum(gradient, velocity, options.momentum)
    return descent(params, summed, options, clock), summed if options.momentum else None, loss


# Magnitude pruning of real-valued parameters to what each agent may keep.


class PruningOptions(DescentOptions):
    """What the methods that prune real values have in common."""

    lr: Annotated[float, Field(gt=0)] = Field(0.001, description="η, step size of the parameters")


def prune(masker: Masker, params: Tensor, keep: Tensor) -> Tensor:
    """Prune_i(x): the largest |x| of every layer, zero elsewhere; biases and norms untouched."""
    weights = masker.layout.weights
    pruned = params.clone()  # [A, P]
    pruned[:, :weights] *= masker.mask(params[:, :weights], keep)
    return pruned


def straight_through_step(
    setting: Setting, params: Tensor, keep: Tensor, data: LocalData, clock: Clock, options: DescentOptions
) -> tuple[Tensor, Tensor]:
    """x½ = x − η (∇f(Prune(x)) + ω x): the pruned model is run, all of the latent x is trained."""
    gradient, loss = setting.network.gradient(prune(setting.masker, params, keep), data.batch(clock))
    return params - descent(params, gradient, options, clock), loss


def pruned_step(
    setting: Setting, params: Tensor, keep: Tensor, data: LocalData, clock: Clock, options: DescentOptions
) -> tuple[Tensor, Tensor]:
    """s = Prune(x½): a straight-through step, pruned to what is sent."""
    trained, loss = straight_through_step(setting, params, keep, data, clock, options)
    return prune(setting.masker, trained, keep), loss
