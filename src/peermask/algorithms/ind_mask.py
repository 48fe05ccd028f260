"""ind-mask: every agent learns its mask alone, and nothing is sent. The baseline for collaboration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, algorithms
from peermask.algorithms.descent import ScoreOptions, first_velocity, score_step
from peermask.graph.mixing import Mixing
from peermask.wire.schema import Payload


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
    recordable = ("learn", "fuse")

    Options = ScoreOptions

    options: ScoreOptions

    def init(self, agents: Agents) -> State:
        scores = self.masker.initial_scores(self.options.score_init, agents.ids, self.setting.seed)
        scores = scores.to(agents.keep.device)
        mask, velocity = self.masker.mask(scores, agents.keep), first_velocity(scores, self.options.momentum)
        return State(scores, mask, agents.keep, velocity)

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        """z ← z − η (G(z) + ω z + λ ∂R/∂z).   Paper Eq. (4)"""
        lr, batch = self.options.scheduled_lr(clock), data.batch(clock)
        step = score_step(self.setting, self.options, lr, state.scores, state.mask, state.keep, state.velocity, batch)
        mask = self.masker.mask(step.scores, state.keep)
        return replace(state, scores=step.scores, mask=mask, velocity=step.velocity), step.loss

    def share(self, state: State) -> Payload:  # noqa: ARG002
        return {}

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        return state

    def local_model(self, state: State) -> Tensor:
        return self.masker.model(state.mask, state.keep)
