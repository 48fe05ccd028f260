"""Ditto over DSGD: beside the model that neighbours average, each agent trains a personal one that stays close to it.

    learn   x½ = x − η (∇f(x) + ω x)                       the agreed model, as in DSGD
            x' ← x' − η (∇f(x') + ω x' + λ (x' − x))       the personal one, on the same batch
    share   x½
    fuse    x  ← Σ_j W_ij x½_j

The personal model is deployed and never sent. λ = 0 is training alone; a large λ follows the agreed model.

Li, Hu, Beirami, Smith: Ditto: fair and robust federated learning through personalization (2021); there with a server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, algorithms
from peermask.algorithms.descent import (
    MomentumOptions,
    add_momentum,
    common_start,
    descent,
    first_velocity,
    momentum_step,
)
from peermask.algorithms.message import as_message, as_params, mix
from peermask.graph.mixing import Mixing
from peermask.wire.schema import Payload


@dataclass(frozen=True)
class State:
    agreed: Tensor  # [A, P] x
    personal: Tensor  # [A, P] x'
    velocity: Tensor | None = None  # [A, P] of x, where momentum is on
    personal_velocity: Tensor | None = None  # [A, P] of x'


@algorithms.register("ditto")
class Ditto(Algorithm[State]):
    """Ditto over DSGD: a personal model beside the agreed one, pulled towards it."""

    recordable = ("learn", "fuse")

    class Options(MomentumOptions):
        closeness: Annotated[float, Field(ge=0)] = Field(
            0.3, description="λ, how strongly the personal model is pulled towards the agreed one"
        )

    options: Options

    def init(self, agents: Agents) -> State:
        start, momentum = common_start(self.masker, agents), self.options.momentum
        return State(start, start.clone(), first_velocity(start, momentum), first_velocity(start, momentum))

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        batch, options = data.batch(clock), self.options
        step, velocity, _ = momentum_step(self.setting, state.agreed, state.velocity, batch, options, clock)
        gradient, loss = self.setting.network.gradient(state.personal, batch)
        gradient = gradient + options.closeness * (state.personal - state.agreed)
        direction, personal_velocity = add_momentum(gradient, state.personal_velocity, options.momentum)
        personal = state.personal - descent(state.personal, direction, options, clock)
        return State(state.agreed - step, personal, velocity, personal_velocity), loss

    def share(self, state: State) -> Payload:
        return as_message(state.agreed, self.masker.layout.weights)

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        return replace(state, agreed=mix(received, mixing.metropolis_mean))

    def local_model(self, state: State) -> Tensor:
        return state.personal

    def unmixed_model(self, payload: Payload) -> Tensor:
        return as_params(payload)
