"""ind-weipru: every agent trains real weights alone and prunes them by magnitude after each step.

hard   x ← Prune(x − η (∇f(x) + ω x))          iterative hard thresholding, with the dense gradient
soft   x ← x − η (∇f(Prune(x)) + ω x)          a latent dense x, pruned for every use
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, Payload, Setting, algorithms
from peermask.algorithms.descent import common_start, descent
from peermask.algorithms.pruning import PruningOptions, prune, straight_through_step
from peermask.graph.mixing import Mixing


@dataclass(frozen=True)
class State:
    params: Tensor  # [A, P] x
    keep: Tensor  # [A, L] K_l


@algorithms.register("ind-weipru")
class IndWeipru(Algorithm[State]):
    """Each agent trains and prunes real weights on its own; nothing is exchanged."""

    class Options(PruningOptions):
        pruning: Literal["hard", "soft"] = Field(
            "hard", description="prune the weights themselves after each step, or a copy of them before each use"
        )

    def __init__(self, options: Options, setting: Setting) -> None:
        self.options, self.setting = options, setting

    def init(self, agents: Agents) -> State:
        return State(common_start(self.setting.masker, agents), agents.keep)

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        if self.options.pruning == "soft":
            params, loss = straight_through_step(self.setting, state.params, state.keep, data, clock, self.options)
            return replace(state, params=params), loss
        gradient, loss = self.setting.network.gradient(state.params, data.batch(clock))
        trained = state.params - descent(state.params, gradient, self.options, clock)
        return replace(state, params=prune(self.setting.masker, trained, state.keep)), loss

    def share(self, state: State) -> Payload:  # noqa: ARG002
        return {}

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        return state

    def local_model(self, state: State) -> Tensor:
        return prune(self.setting.masker, state.params, state.keep)
