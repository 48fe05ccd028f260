"""Gradient descent: the learning rate over a run, momentum, real-valued parameters and their pruning, and scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from peermask import registry
from peermask.algorithms.contract import Agents, Clock, LocalData, Setting
from peermask.compute.network import Batch
from peermask.masks.masker import Masker
from peermask.masks.scores import ScoreInit, keep_sign, step_scores
from peermask.wire.sets import slices

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


def add_momentum(gradient: Tensor, velocity: Tensor | None, momentum: float) -> tuple[Tensor, Tensor | None]:
    """u ← β u + g, to follow and to carry; g and nothing where momentum is off."""
    if velocity is None:
        return gradient, None
    summed = momentum * velocity + gradient
    return summed, summed


class DescentOptions(registry.Options):
    """Options of all methods that train real values."""

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
    direction, velocity = add_momentum(gradient, velocity, options.momentum)
    return descent(params, direction, options, clock), velocity, loss


# Magnitude pruning of real-valued parameters to what each agent may keep.


class PruningOptions(DescentOptions):
    """Options of all methods that prune real values."""

    lr: Annotated[float, Field(gt=0)] = Field(0.001, description="η, step size of the parameters")


def prune(masker: Masker, params: Tensor, keep: Tensor) -> Tensor:
    """Prune_i(x): the largest |x| of every layer, zero elsewhere; biases and norms untouched."""
    weights = masker.layout.weights
    pruned = params.clone()  # [A, P]
    pruned[:, :weights] *= masker.mask(params[:, :weights], keep)
    return pruned


def mask_weights(mask: Tensor, params: Tensor) -> Tensor:
    """Weights on the mask, biases and norms unchanged."""
    weights = mask.shape[1]
    return torch.cat([params[:, :weights] * mask, params[:, weights:]], dim=1)  # [A, P]


def straight_through_step(
    setting: Setting, params: Tensor, keep: Tensor, data: LocalData, clock: Clock, options: DescentOptions
) -> tuple[Tensor, Tensor]:
    """x½ = x − η (∇f(Prune(x)) + ω x): the pruned model is run, all of the latent x is trained."""
    gradient, loss = setting.network.gradient(prune(setting.masker, params, keep), data.batch(clock))
    return params - descent(params, gradient, options, clock), loss


def prune_after_step(
    setting: Setting, params: Tensor, keep: Tensor, data: LocalData, clock: Clock, options: DescentOptions
) -> tuple[Tensor, Tensor]:
    """s = Prune(x½): a straight-through step, pruned to what is sent."""
    trained, loss = straight_through_step(setting, params, keep, data, clock, options)
    return prune(setting.masker, trained, keep), loss


# One private step on the scores, as every method that learns a mask takes it.
#
# G  = ∂f/∂v ⊙ w ⊙ sign(z)            Paper Eq. (15)
# u  ← β u + G                        momentum; u = G where it is off
# z½ = z − η (û + ω z + λ ∂R/∂z)      Eq. (4), (14)
#
# û is u itself (`step = "absolute"`, as in the paper), or u in units of the scores (`step = "relative"`): of each layer
# û_l = u_l mean|z_l| / rms(u_l). Gradients differ by orders of magnitude between layers, networks and frozen weights;
# in units of the scores one step size fits all of them.

LARGEST, TRAVEL = 0.1, 8.0  # of `lr = "auto"`: the largest step, and the sum of all steps without a schedule

Lr = Annotated[float, Field(gt=0)] | Literal["auto"]


class ScoreOptions(registry.Options):
    """Options of all methods that learn a mask."""

    lr: Lr = Field(1.0, description="η, step size of the scores; auto, of relative steps: min(0.1, 8 / batches)")
    step: Literal["absolute", "relative"] = Field(
        "absolute", description="follow the gradient itself, or in each layer its direction in units of the scores"
    )
    schedule: Schedule = Field("constant", description="how η changes over the run")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="ω, on the scores, only in learn")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="β, how much of the last round's G is kept")
    group_lasso: Annotated[float, Field(ge=0)] = Field(0.0, description="λ of the group lasso on the scores")
    score_init: ScoreInit = Field(
        "shared", description="the first scores: one draw for all agents (|w| of given weights), or one each"
    )
    keep_sign: bool = Field(False, description="stop a score at zero instead of letting a step carry it across")

    @model_validator(mode="after")
    def _auto_is_relative(self) -> ScoreOptions:
        if self.lr == "auto" and self.step == "absolute":
            raise ValueError("lr = 'auto' is for step = 'relative'; give a number")
        return self

    def first_lr(self, clock: Clock) -> float:
        """η before the schedule."""
        return min(LARGEST, TRAVEL / (clock.rounds * clock.batches)) if self.lr == "auto" else self.lr

    def scheduled_lr(self, clock: Clock) -> float | Tensor:
        """η of a round."""
        return learning_rate(self.first_lr(clock), self.schedule, clock)


@dataclass(frozen=True)
class Step:
    """Result of a step."""

    scores: Tensor  # [A, P_w] z½
    velocity: Tensor | None  # [A, P_w] u, where momentum is on
    direction: Tensor  # [A, P_w] û
    loss: Tensor  # [A]


def score_step(
    setting: Setting,
    options: ScoreOptions,
    lr: float | Tensor,
    scores: Tensor,
    mask: Tensor,
    keep: Tensor,
    velocity: Tensor | None,
    batch: Batch,
) -> Step:
    """A step by the loss of the model w ⊙ m on one batch."""
    masker = setting.masker
    model_gradient, loss = setting.network.gradient(masker.model(mask, keep), batch)
    moved, summed, direction = step_scores(
        scores,
        model_gradient[:, : masker.layout.weights],
        masker.weights(keep),
        velocity,
        lr,
        options.momentum,
        options.weight_decay,
        options.group_lasso,
        masker.layout,
        relative=options.step == "relative",
    )
    if options.keep_sign:
        moved = keep_sign(moved, scores)
    return Step(moved, summed if options.momentum else None, direction, loss)


# Openings: a first mask of each agent that every other can compute, so that even its first message is a delta.
#
# Close to the mask of an agent that has not learned yet, Thres(|z| + γ mean|z| n), but in whole numbers: every machine
# must find the same, and floats added up in another order would not.

SCORE_BITS = 24  # a score is a multiple of 2^-24
GAIN_BITS = 16


def opening_masks(
    agents: Agents, masker: Masker, init: ScoreInit, seed: int, votes: Callable[[Agents], Tensor], gain: float
) -> Tensor:
    """[A, P_w]; `votes` gives an agent's first n as 0 or 1, [1, P_w]. Agents that begin alike are worked out once."""
    masks: dict[object, Tensor] = {}
    rows = []
    for i, agent in enumerate(agents.ids):
        one = agents.rows(slice(i, i + 1))
        alike = (agent if init == "independent" else None, tuple(one.keep[0].tolist()), float(one.retention[0]))
        if alike not in masks:
            scores = masker.initial_scores(init, one.ids, seed)[0].numpy()
            masks[alike] = opening_mask(scores, votes(one)[0].numpy(), gain, one.keep[0].tolist(), masker.layout.sizes)
        rows.append(masks[alike])
    return torch.stack(rows)


def opening_mask(
    scores: NDArray[np.float32], votes: NDArray[np.uint8], gain: float, keep: list[int], sizes: tuple[int, ...]
) -> Tensor:
    """The `keep` largest of each layer, [P_w]; on a tie the first."""
    whole = (np.abs(scores) * np.float32(2**SCORE_BITS)).astype(np.int64)
    mask = np.zeros(len(whole), np.bool_)
    for part, size, kept in zip(slices(sizes), sizes, keep, strict=True):
        mean = int(whole[part].sum()) // size
        raised = whole[part] + (mean * round(gain * 2**GAIN_BITS) >> GAIN_BITS) * votes[part].astype(np.int64)
        limit = np.partition(raised, size - kept)[size - kept] if kept else raised.max() + 1
        mask[part] = raised > limit
        ties = np.flatnonzero(raised == limit)[: kept - int(np.count_nonzero(mask[part]))]
        mask[part.start + ties] = True
    return torch.from_numpy(mask)
