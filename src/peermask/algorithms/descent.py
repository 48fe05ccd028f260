"""Gradient descent on real-valued parameters: where it starts, and one step of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from peermask import registry
from peermask.algorithms.contract import Agents, Clock
from peermask.algorithms.optimiser import Schedule, scheduled
from peermask.masks.masker import Masker


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
    return scheduled(options.lr, options.schedule, clock) * direction  # [A, P]
