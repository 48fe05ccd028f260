"""avr-weipru: agents train real weights, prune, send them, and take the plain average of what they hear.

x½ = x − η (∇f(Prune(x)) + ω x);   share s = Prune(x½);   x ← mean of s_j, zeros counted
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, Payload, Setting, algorithms
from peermask.algorithms.descent import common_start
from peermask.algorithms.message import as_message, as_params, mixed
from peermask.algorithms.pruning import PruningOptions, prune, pruned_step
from peermask.graph.mixing import Mixing


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
            return replace(state, params=mixed(received, mixing.closed_mean))
        heard = mixed(received, mixing.open_mean)  # [A, P]
        return replace(state, params=torch.where(mixing.degree[:, None] > 0, heard, state.params))

    def local_model(self, state: State) -> Tensor:
        return state.params if self.options.eval_dense else prune(self.setting.masker, state.params, state.keep)

    def unmixed_model(self, payload: Payload) -> Tensor:
        return as_params(payload)
