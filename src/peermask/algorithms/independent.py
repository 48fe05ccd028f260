"""Agents that learn alone and send nothing: the whole network (ind-dense) or a mask (ind-mask).

These are the baselines for collaboration; ind-dense is the paper's "weight update". ind-weipru is in weipru.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, Setting, algorithms
from peermask.algorithms.descent import (
    MomentumOptions,
    ScoreOptions,
    common_start,
    first_velocity,
    momentum_step,
    score_step,
)
from peermask.graph.mixing import Mixing
from peermask.wire.schema import Payload


@dataclass(frozen=True)
class DenseState:
    params: Tensor  # [A, P] x
    velocity: Tensor | None = None  # [A, P], where momentum is on


@algorithms.register("ind-dense")
class IndDense(Algorithm[DenseState]):
    """Each agent trains all weights on its own data; nothing is pruned or exchanged."""

    recordable = ("learn", "fuse")

    Options = MomentumOptions

    def __init__(self, options: MomentumOptions, setting: Setting) -> None:
        self.options, self.setting = options, setting

    def init(self, agents: Agents) -> DenseState:
        params = common_start(self.setting.masker, agents)
        return DenseState(params, first_velocity(params, self.options.momentum))

    def learn(self, state: DenseState, data: LocalData, clock: Clock) -> tuple[DenseState, Tensor]:
        """x ← x − η (g + ω x)."""
        batch = data.batch(clock)
        step, velocity, loss = momentum_step(self.setting, state.params, state.velocity, batch, self.options, clock)
        return DenseState(state.params - step, velocity), loss

    def share(self, state: DenseState) -> Payload:  # noqa: ARG002
        return {}

    def fuse(self, state: DenseState, received: Payload, mixing: Mixing, clock: Clock) -> DenseState:  # noqa: ARG002
        return state

    def local_model(self, state: DenseState) -> Tensor:
        return state.params


@dataclass(frozen=True)
class MaskState:
    scores: Tensor  # [A, P_w] z
    mask: Tensor  # [A, P_w] m = M(z)
    keep: Tensor  # [A, L] K_l
    velocity: Tensor | None = None  # [A, P_w], where momentum is on


@algorithms.register("ind-mask")
class IndMask(Algorithm[MaskState]):
    """Each agent learns its own mask; nothing is exchanged."""

    over_frozen_weights: ClassVar[bool] = True
    recordable = ("learn", "fuse")

    Options = ScoreOptions

    def __init__(self, options: ScoreOptions, setting: Setting) -> None:
        self.options, self.setting, self.masker = options, setting, setting.masker

    def init(self, agents: Agents) -> MaskState:
        scores = self.masker.initial_scores(self.options.score_init, agents.ids, self.setting.seed)
        scores = scores.to(agents.keep.device)
        mask, velocity = self.masker.mask(scores, agents.keep), first_velocity(scores, self.options.momentum)
        return MaskState(scores, mask, agents.keep, velocity)

    def learn(self, state: MaskState, data: LocalData, clock: Clock) -> tuple[MaskState, Tensor]:
        """z ← z − η (G(z) + ω z + λ ∂R/∂z).   Paper Eq. (4)"""
        lr = self.options.scheduled_lr(clock)
        step = score_step(
            self.setting, self.options, lr, state.scores, state.mask, state.keep, state.velocity, data.batch(clock)
        )
        mask, velocity = self.masker.mask(step.scores, state.keep), step.summed if self.options.momentum else None
        return replace(state, scores=step.scores, mask=mask, velocity=velocity), step.loss

    def share(self, state: MaskState) -> Payload:  # noqa: ARG002
        return {}

    def fuse(self, state: MaskState, received: Payload, mixing: Mixing, clock: Clock) -> MaskState:  # noqa: ARG002
        return state

    def local_model(self, state: MaskState) -> Tensor:
        return self.masker.model(state.mask, state.keep)
