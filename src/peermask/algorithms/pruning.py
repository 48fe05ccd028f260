"""Magnitude pruning of real-valued parameters to what each agent may keep."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Clock, LocalData, Setting
from peermask.algorithms.descent import DescentOptions, descent
from peermask.masks.masker import Masker


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
