"""Pruned weights: trained alone (ind-weipru), averaged (avr-weipru), or averaged over their holders (par-weipru)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, Setting, algorithms
from peermask.algorithms.descent import PruningOptions, common_start, descent, prune, pruned_step, straight_through_step
from peermask.algorithms.message import as_message, as_params, holders_mean, mix, mix_rest
from peermask.graph.mixing import Mixing
from peermask.wire.schema import Payload

# avr-weipru: agents train real weights, prune, send them, and take the plain average of what they hear.
#
# x½ = x − η (∇f(Prune(x)) + ω x);   share s = Prune(x½);   x ← mean of s_j, zeros counted


@dataclass(frozen=True)
class State:
    params: Tensor  # [A, P] x; between learn and fuse s, the pruned
    keep: Tensor  # [A, L] K_l


@algorithms.register("avr-weipru")
class AvrWeipru(Algorithm[State]):
    """Pruned real weights travel and are averaged, entries that were pruned away counting as zeros."""

    class Options(PruningOptions):
        neighbours: Literal["closed", "open"] = Field(
            "closed", description="whether an agent's own weights are part of its average"
        )
        eval_dense: bool = Field(False, description="deploy the average itself, denser than the agent may keep")

    def __init__(self, options: Options, setting: Setting) -> None:
        self.options, self.setting = options, setting

    def init(self, agents: Agents) -> State:
        return State(common_start(self.setting.masker, agents), agents.keep)

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        sent, loss = pruned_step(self.setting, state.params, state.keep, data, clock, self.options)
        return replace(state, params=sent), loss

    def share(self, state: State) -> Payload:
        return as_message(state.params, self.setting.masker.layout.weights)

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        if self.options.neighbours == "closed":
            return replace(state, params=mix(received, mixing.closed_mean))
        heard = mix(received, mixing.open_mean)  # [A, P]
        return replace(state, params=torch.where(mixing.degree[:, None] > 0, heard, state.params))

    def local_model(self, state: State) -> Tensor:
        return state.params if self.options.eval_dense else prune(self.setting.masker, state.params, state.keep)

    def unmixed_model(self, payload: Payload) -> Tensor:
        return as_params(payload)


# par-weipru: as avr-weipru, but each entry is averaged over the agents that kept it (HeteroFL's rule).
#
# x½ = x − η (∇f(Prune(x)) + ω x);   share s = Prune(x½), whose support is h = 1[s ≠ 0]
# union (A)   x ← Σ_j s_j / Σ_j h_j, and 0 where no agent kept an entry
# own (B)     x ← h_i ⊙ Σ_j s_j / Σ_j h_j


@algorithms.register("par-weipru")
class ParWeipru(Algorithm[State]):
    """Pruned real weights travel, and every entry is averaged over the agents that kept it."""

    class Options(PruningOptions):
        support: Literal["union", "own"] = Field(
            "union", description="continue from every entry that any agent kept (A), or only from the agent's own (B)"
        )

    def __init__(self, options: Options, setting: Setting) -> None:
        self.options, self.setting = options, setting

    def init(self, agents: Agents) -> State:
        return State(common_start(self.setting.masker, agents), agents.keep)

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        sent, loss = pruned_step(self.setting, state.params, state.keep, data, clock, self.options)
        return replace(state, params=sent), loss

    def share(self, state: State) -> Payload:
        return as_message(state.params, self.setting.masker.layout.weights)

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        sent = received["weights"]  # [K, P_w]
        weights = holders_mean(mixing, sent, sent != 0, 0.0)  # [A, P_w]
        if self.options.support == "own":
            weights = weights * (state.params[:, : weights.shape[1]] != 0)
        return replace(state, params=mix_rest(weights, received, mixing.closed_mean))

    def local_model(self, state: State) -> Tensor:
        return prune(self.setting.masker, state.params, state.keep)

    def unmixed_model(self, payload: Payload) -> Tensor:
        return as_params(payload)


# ind-weipru: every agent trains real weights alone and prunes them by magnitude after each step.
#
# hard   x ← Prune(x − η (∇f(x) + ω x))          iterative hard thresholding, with the dense gradient
# soft   x ← x − η (∇f(Prune(x)) + ω x)          a latent dense x, pruned for every use


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
