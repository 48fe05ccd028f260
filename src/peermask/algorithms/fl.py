"""FL: FedAvg with every agent in every round. A server hears all agents, and all continue from its mean.

x½_i = x − η (∇f_i(x) + ω x), once or a few times;   share x½_i;   x ← Σ_i p_i x½_i
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, algorithms
from peermask.algorithms.descent import MomentumOptions, common_start, first_velocity, momentum_step
from peermask.algorithms.message import as_message, as_params, mix
from peermask.graph.mixing import Mixing
from peermask.wire.schema import Payload


@dataclass(frozen=True)
class State:
    params: Tensor  # [A, P] x, the same row for every agent
    velocity: Tensor | None = None  # [A, P] each agent's own, where momentum is on; never sent


@algorithms.register("fl")
class Fl(Algorithm[State]):
    """Federated averaging: one global model from a server that hears all agents."""

    hears_all: ClassVar[bool] = True  # a message goes to the server and one comes back, with any graph
    recordable = ("learn", "fuse")

    class Options(MomentumOptions):
        shares: Literal["samples", "uniform"] = Field(
            "samples", description="p_i: an agent's share of all training samples, or 1/N"
        )
        local_steps: Annotated[int, Field(ge=1)] = Field(1, description="gradient steps between two exchanges")

    options: Options

    def init(self, agents: Agents) -> State:
        params = common_start(self.masker, agents)
        return State(params, first_velocity(params, self.options.momentum))

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        params, velocity, losses = state.params, state.velocity, []
        for number in range(self.options.local_steps):
            batch = data.batch(clock, number)
            step, velocity, loss = momentum_step(self.setting, params, velocity, batch, self.options, clock)
            params = params - step
            losses.append(loss)
        return State(params, velocity), torch.stack(losses).mean(0)

    def share(self, state: State) -> Payload:
        return as_message(state.params, self.masker.layout.weights)

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        mean = mixing.server_mean if self.options.shares == "samples" else mixing.uniform_server_mean
        return replace(state, params=mix(received, mean))

    def local_model(self, state: State) -> Tensor:
        return state.params

    def unmixed_model(self, payload: Payload) -> Tensor:
        return as_params(payload)
