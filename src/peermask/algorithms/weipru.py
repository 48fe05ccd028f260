"""Pruned weights: trained alone (ind-weipru), averaged (avr-weipru), or averaged over their holders (par-weipru).

ind, hard   x ← Prune(x − η (∇f(x) + ω x))          iterative hard thresholding, with the dense gradient
ind, soft   x ← x − η (∇f(Prune(x)) + ω x)          a latent dense x, pruned for every use

avr, par    x½ = x − η (∇f(Prune(x)) + ω x);   share s = Prune(x½), whose support is h = 1[s ≠ 0]
avr         x ← mean of s_j, zeros counted
par, union  x ← Σ_j s_j / Σ_j h_j, and 0 where no agent kept an entry (HeteroFL's rule)
par, own    x ← h_i ⊙ Σ_j s_j / Σ_j h_j
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, Setting, algorithms
from peermask.algorithms.descent import (
    PruningOptions,
    common_start,
    descent,
    prune,
    prune_after_step,
    straight_through_step,
)
from peermask.algorithms.message import as_message, as_params, holders_mean, mix, mix_rest
from peermask.graph.mixing import Mixing
from peermask.wire.schema import Payload


@dataclass(frozen=True)
class State:
    params: Tensor  # [A, P] x; between learn and fuse of avr and par s, the pruned
    keep: Tensor  # [A, L] K_l


class IndOptions(PruningOptions):
    pruning: Literal["hard", "soft"] = Field(
        "hard", description="prune the weights themselves after each step, or a copy of them before each use"
    )


class AvrOptions(PruningOptions):
    neighbours: Literal["closed", "open"] = Field(
        "closed", description="whether an agent's own weights are part of its average"
    )
    eval_dense: bool = Field(False, description="deploy the average itself, denser than the agent may keep")


class ParOptions(PruningOptions):
    support: Literal["union", "own"] = Field(
        "union", description="continue from every entry that any agent kept (A), or only from the agent's own (B)"
    )


def step_alone(
    setting: Setting, params: Tensor, keep: Tensor, data: LocalData, clock: Clock, options: IndOptions
) -> tuple[Tensor, Tensor]:
    """Train the weights of ind-weipru by one step: [A, P], and losses [A]."""
    if options.pruning == "soft":
        return straight_through_step(setting, params, keep, data, clock, options)
    gradient, loss = setting.network.gradient(params, data.batch(clock))
    return prune(setting.masker, params - descent(params, gradient, options, clock), keep), loss


def average(options: AvrOptions, params: Tensor, received: Payload, mixing: Mixing) -> Tensor:
    """Average all weights, entries that were pruned away counting as zeros: [K, ...] -> [A, P]."""
    if options.neighbours == "closed":
        return mix(received, mixing.closed_mean)
    return torch.where(mixing.degree[:, None] > 0, mix(received, mixing.open_mean), params)


def average_over_holders(options: ParOptions, params: Tensor, received: Payload, mixing: Mixing) -> Tensor:
    """Average every entry over the agents that kept it: [K, ...] -> [A, P]."""
    sent = received["weights"]  # [K, P_w]
    weights = holders_mean(mixing, sent, sent != 0, 0.0)  # [A, P_w]
    if options.support == "own":
        weights = weights * (params[:, : weights.shape[1]] != 0)
    return mix_rest(weights, received, mixing.closed_mean)


Step = Callable[[Setting, Tensor, Tensor, LocalData, Clock, Any], tuple[Tensor, Tensor]]
Fusion = Callable[[Any, Tensor, Payload, Mixing], Tensor]


def register(
    name: str, summary: str, options_class: type[PruningOptions], step: Step, fusion: Fusion | None = None
) -> None:
    """Register a variant; without `fusion` nothing is exchanged."""

    @algorithms.register(name)
    class Weipru(Algorithm[State]):
        recordable = ("learn", "fuse")
        __doc__ = summary
        Options = options_class

        def init(self, agents: Agents) -> State:
            return State(common_start(self.masker, agents), agents.keep)

        def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
            params, loss = step(self.setting, state.params, state.keep, data, clock, self.options)
            return replace(state, params=params), loss

        def share(self, state: State) -> Payload:
            return {} if fusion is None else as_message(state.params, self.masker.layout.weights)

        def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
            if fusion is None:
                return state
            return replace(state, params=fusion(self.options, state.params, received, mixing))

        def local_model(self, state: State) -> Tensor:
            if isinstance(self.options, AvrOptions) and self.options.eval_dense:
                return state.params
            return prune(self.masker, state.params, state.keep)

        def unmixed_model(self, payload: Payload) -> Tensor | None:
            return as_params(payload) if payload else None


register(
    "ind-weipru",
    "Each agent trains and prunes real weights on its own; nothing is exchanged.",
    IndOptions,
    step_alone,
)
register(
    "avr-weipru",
    "Pruned real weights travel and are averaged, entries that were pruned away counting as zeros.",
    AvrOptions,
    prune_after_step,
    average,
)
register(
    "par-weipru",
    "Pruned real weights travel, and every entry is averaged over the agents that kept it.",
    ParOptions,
    prune_after_step,
    average_over_holders,
)
