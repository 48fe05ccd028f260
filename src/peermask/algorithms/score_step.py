"""One private step on the scores, as every method that learns a mask takes it.

G  = ∂f/∂v ⊙ w ⊙ sign(z)            Paper Eq. (15)
u  ← β u + G                        momentum; u = G where it is off
z½ = z − η (u + ω z + λ ∂R/∂z)      Eq. (4), (14)
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from peermask import registry
from peermask.algorithms.contract import Clock, Setting
from peermask.algorithms.optimiser import Schedule, scheduled
from peermask.masks.scores import ScoreInit, keep_sign, stepped
from peermask.models.network import Batch


class ScoreOptions(registry.Options):
    """What every method that learns a mask has in common."""

    lr: Annotated[float, Field(gt=0)] = Field(1.0, description="η, step size of the scores")
    schedule: Schedule = Field("constant", description="how η changes over the run")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="ω, on the scores, only in learn")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="β, how much of the last round's G is kept")
    group_lasso: Annotated[float, Field(ge=0)] = Field(0.0, description="λ of the group lasso on the scores")
    score_init: ScoreInit = Field(
        "shared", description="the first scores: one draw for all agents (|w| of given weights), or one each"
    )
    keep_sign: bool = Field(False, description="stop a score at zero instead of letting a step carry it across")


def score_step(
    setting: Setting,
    options: ScoreOptions,
    scores: Tensor,
    mask: Tensor,
    keep: Tensor,
    velocity: Tensor | None,
    batch: Batch,
    clock: Clock,
) -> tuple[Tensor, Tensor, Tensor]:
    """z½ [A, P_w], u [A, P_w] and the loss [A] of the model w ⊙ m on one batch."""
    masker = setting.masker
    model_gradient, loss = setting.network.gradient(masker.model(mask, keep), batch)
    lr = scheduled(options.lr, options.schedule, clock)
    moved, summed = stepped(
        scores,
        model_gradient[:, : masker.layout.weights],
        masker.weights(keep),
        velocity,
        lr,
        options.momentum,
        options.weight_decay,
        options.group_lasso,
        masker.layout,
    )
    return (keep_sign(moved, scores) if options.keep_sign else moved), summed, loss
