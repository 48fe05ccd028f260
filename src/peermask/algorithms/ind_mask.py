"""ind-mask: every agent learns its mask alone, and nothing is sent. What collaboration has to beat."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from peermask import registry
from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, Payload, Setting, algorithms
from peermask.algorithms.momentum import accumulated, first_velocity
from peermask.algorithms.schedule import Schedule, scheduled
from peermask.graph.mixing import Mixing
from peermask.masks.scores import ScoreInit, initial_scores, keep_sign, regularised, score_gradient


@dataclass(frozen=True)
class State:
    scores: Tensor  # [A, P_w] z
    mask: Tensor  # [A, P_w] m = M(z)
    keep: Tensor  # [A, L] K_l
    velocity: Tensor | None = None  # [A, P_w], where momentum is on


@algorithms.register("ind-mask")
class IndMask(Algorithm[State]):
    """Each agent learns its own mask; nothing is exchanged."""

    over_frozen_weights: ClassVar[bool] = True

    class Options(registry.Options):
        lr: Annotated[float, Field(gt=0)] = Field(1.0, description="η, step size of the scores")
        schedule: Schedule = Field("constant", description="how η changes over the run")
        weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="ω, on the scores")
        momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
            0.0, description="β, how much of the last round's G is kept"
        )
        group_lasso: Annotated[float, Field(ge=0)] = Field(0.0, description="λ of the group lasso on the scores")
        score_init: ScoreInit = Field("shared", description="one draw of the first scores for all agents, or one each")
        keep_sign: bool = Field(False, description="stop a score at zero instead of letting a step carry it across")

    def __init__(self, options: Options, setting: Setting) -> None:
        self.options, self.setting, self.masker = options, setting, setting.masker

    def init(self, agents: Agents) -> State:
        scores = initial_scores(self.masker.layout, self.options.score_init, agents.ids, self.setting.seed)
        scores = scores.to(agents.keep.device)
        mask, velocity = self.masker.mask(scores, agents.keep), first_velocity(scores, self.options.momentum)
        return State(scores, mask, agents.keep, velocity)

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        """z ← z − η (G(z) + ω z + λ ∂R/∂z).   Paper Eq. (4)"""
        params = self.masker.model(state.mask, state.keep)
        gradient, loss = self.setting.network.gradient(params, data.batch(clock))
        weights = self.masker.weights(state.keep)
        step = score_gradient(gradient[:, : self.masker.layout.weights], weights, state.scores)
        summed = accumulated(step, state.velocity, self.options.momentum)
        decay, lasso = self.options.weight_decay, self.options.group_lasso
        step = regularised(summed, state.scores, decay, lasso, self.masker.layout)
        scores = torch.sub(state.scores, step, alpha=scheduled(self.options.lr, self.options.schedule, clock))
        if self.options.keep_sign:
            scores = keep_sign(scores, state.scores)
        mask = self.masker.mask(scores, state.keep)
        return replace(state, scores=scores, mask=mask, velocity=summed if self.options.momentum else None), loss

    def share(self, state: State) -> Payload:  # noqa: ARG002
        return {}

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        return state

    def local_model(self, state: State) -> Tensor:
        return self.masker.model(state.mask, state.keep)
