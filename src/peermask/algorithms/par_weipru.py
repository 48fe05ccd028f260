"""par-weipru: as avr-weipru, but each entry is averaged over the agents that kept it (HeteroFL's rule).

x½ = x − η (∇f(Prune(x)) + ω x);   share s = Prune(x½), whose support is h = 1[s ≠ 0]
union (A)   x ← Σ_j s_j / Σ_j h_j, and 0 where no agent kept an entry
own (B)     x ← h_i ⊙ Σ_j s_j / Σ_j h_j
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, Payload, Setting, algorithms
from peermask.algorithms.descent import common_start
from peermask.algorithms.message import as_message, as_params, holders_mean, with_rest
from peermask.algorithms.pruning import PruningOptions, prune, pruned_step
from peermask.graph.mixing import Mixing


@dataclass(frozen=True)
class State:
    params: Tensor  # [A, P] x; between learn and fuse s, the pruned
    keep: Tensor  # [A, L] K_l


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
        return replace(state, params=with_rest(weights, received, mixing.closed_mean))

    def local_model(self, state: State) -> Tensor:
        return prune(self.setting.masker, state.params, state.keep)

    def unmixed_model(self, payload: Payload) -> Tensor:
        return as_params(payload)
