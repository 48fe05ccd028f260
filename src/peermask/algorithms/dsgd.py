"""DSGD: neighbours average their whole models, after a gradient step (adapt-then-combine) or beside it (Lian).

adapt-then-combine   x½ = x − η (∇f(x) + ω x);   share x½;   x ← Σ_j W_ij x½_j
lian                 share x;   x ← Σ_j W_ij x_j − η (∇f(x) + ω x)

With `clip` what a neighbour adds to the sum is bounded: see algorithms/message.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, algorithms
from peermask.algorithms.descent import (
    MomentumOptions,
    common_start,
    first_velocity,
    momentum_step,
)
from peermask.algorithms.message import (
    Neighbours,
    as_message,
    as_params,
    clip_messages,
    mix,
    neighbour_mean,
    neighbour_weights,
)
from peermask.graph.mixing import Mixing
from peermask.graph.sums import weighted_sum
from peermask.wire.schema import Payload


@dataclass(frozen=True)
class State:
    params: Tensor  # [A, P] x
    velocity: Tensor | None = None  # [A, P] g summed over rounds, where momentum is on; never sent
    step: Tensor | None = None  # [A, P] η (g + ω x), from learn to fuse in Lian's form


@algorithms.register("dsgd")
class Dsgd(Algorithm[State]):
    """Decentralised gradient descent: one model, agreed on by gossip."""

    class Options(MomentumOptions):
        form: Literal["adapt-then-combine", "lian"] = Field(
            "adapt-then-combine", description="share the model after the gradient step, or before it"
        )
        neighbours: Neighbours = Field(
            "metropolis", description="W: Metropolis weights, or the plain mean of an agent and its neighbours"
        )
        clip: Annotated[float, Field(gt=0)] | None = Field(
            None,
            description="c: limit a neighbour's distance to this many median distances (algorithms/message.py); "
            "default: no limit",
        )

    options: Options

    @property
    def recordable(self) -> tuple[str, ...]:
        return ("learn", "fuse") if self.options.clip is None else ("learn",)  # distances are compared on the host

    def init(self, agents: Agents) -> State:
        params = common_start(self.masker, agents)
        return State(params, first_velocity(params, self.options.momentum))

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        params = state.params if state.step is None else state.params - state.step
        batch = data.batch(clock)
        step, velocity, loss = momentum_step(self.setting, params, state.velocity, batch, self.options, clock)
        if self.options.form == "lian":
            return State(state.params, velocity, step if state.step is None else state.step + step), loss
        return State(state.params - step, velocity), loss

    def share(self, state: State) -> Payload:
        return as_message(state.params, self.masker.layout.weights)

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        mean = neighbour_mean(mixing, self.options.neighbours)
        if self.options.clip is not None:
            weights = neighbour_weights(mixing, self.options.neighbours)
            mean = partial(weighted_sum, clip_messages(weights, received, mixing, self.options.clip))
        params = mix(received, mean)
        return replace(state, params=params if state.step is None else params - state.step, step=None)

    def local_model(self, state: State) -> Tensor:
        return state.params

    def unmixed_model(self, payload: Payload) -> Tensor:
        return as_params(payload)
