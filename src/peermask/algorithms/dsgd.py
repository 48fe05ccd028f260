"""DSGD, and two methods over it: DSGDProx, which pulls a model towards its neighbours' mean, and Ditto.

DSGD: neighbours average their whole models, after a gradient step (adapt-then-combine) or beside it (Lian). With `clip`
what a neighbour adds to the sum is bounded: see algorithms/message.py.

    adapt-then-combine   x½ = x − η (∇f(x) + ω x);   share x½;   x ← Σ_j W_ij x½_j
    lian                 share x;   x ← Σ_j W_ij x_j − η (∇f(x) + ω x)

DSGDProx: FedProx on a graph, in the two readings that differ from DSGD. With a single step the literal form *is* DSGD:
the pull μ (x − a) is zero where x starts. The paper's figures for DSGDProx lie far above those for DSGD, so the
personal form, in which x is never overwritten, is the default.

    personal (P1)   x ← x − η (∇f(x) + ω x + μ (x − a));   share x;   a ← mean of the neighbours' x_j
    literal (P2)    a ← x;   E steps of x ← x − η (∇f(x) + ω x + μ (x − a));   share x;   x ← Σ_j W_ij x_j

Ditto: beside the model that neighbours average, each agent trains a personal one that stays close to it, is deployed,
and is never sent. λ = 0 is training alone; a large λ follows the agreed model.

    learn   x½ = x − η (∇f(x) + ω x)                       the agreed model, as in DSGD
            x' ← x' − η (∇f(x') + ω x' + λ (x' − x))       the personal one, on the same batch
    share   x½
    fuse    x  ← Σ_j W_ij x½_j

Li, Hu, Beirami, Smith: Ditto: fair and robust federated learning through personalization (2021); there with a server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, Setting, algorithms
from peermask.algorithms.descent import (
    DescentOptions,
    MomentumOptions,
    add_momentum,
    common_start,
    descent,
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

    def __init__(self, options: Options, setting: Setting) -> None:
        self.options, self.setting = options, setting

    @property
    def recordable(self) -> tuple[str, ...]:
        return ("learn", "fuse") if self.options.clip is None else ("learn",)  # distances are compared on the host

    def init(self, agents: Agents) -> State:
        params = common_start(self.setting.masker, agents)
        return State(params, first_velocity(params, self.options.momentum))

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        params = state.params if state.step is None else state.params - state.step
        batch = data.batch(clock)
        step, velocity, loss = momentum_step(self.setting, params, state.velocity, batch, self.options, clock)
        if self.options.form == "lian":
            return State(state.params, velocity, step if state.step is None else state.step + step), loss
        return State(state.params - step, velocity), loss

    def share(self, state: State) -> Payload:
        return as_message(state.params, self.setting.masker.layout.weights)

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


@dataclass(frozen=True)
class ProxState:
    params: Tensor  # [A, P] x
    anchor: Tensor | None = None  # [A, P] a, in the personal form
    first: Tensor | None = None  # [A, P] the round's first model, from learn to fuse, in the literal form


@algorithms.register("dsgd-prox")
class DsgdProx(Algorithm[ProxState]):
    """DSGD with a proximal pull towards the neighbours' mean (P1) or the round's first model (P2)."""

    recordable = ("learn", "fuse")

    class Options(DescentOptions):
        form: Literal["personal", "literal"] = Field(
            "personal", description="P1: the mean only pulls; P2: it replaces the model, as in FedProx"
        )
        mu: Annotated[float, Field(ge=0)] = Field(1.0, description="μ, strength of the pull; η μ should be below 1")
        local_steps: Annotated[int, Field(ge=1)] = Field(2, description="E, gradient steps a round of the literal form")
        neighbours: Neighbours = Field(
            "metropolis", description="W of the literal form: Metropolis weights, or the plain closed mean"
        )

    def __init__(self, options: Options, setting: Setting) -> None:
        self.options, self.setting = options, setting

    def init(self, agents: Agents) -> ProxState:
        params = common_start(self.setting.masker, agents)
        return ProxState(params, params.clone() if self.options.form == "personal" else None)

    def learn(self, state: ProxState, data: LocalData, clock: Clock) -> tuple[ProxState, Tensor]:
        first = state.params if state.first is None else state.first
        anchor = first if state.anchor is None else state.anchor
        params, losses = state.params, []
        for number in range(1 if self.options.form == "personal" else self.options.local_steps):
            gradient, loss = self.setting.network.gradient(params, data.batch(clock, number))
            pulled = gradient + self.options.mu * (params - anchor)  # [A, P]
            params = params - descent(params, pulled, self.options, clock)
            losses.append(loss)
        return ProxState(params, state.anchor, first if state.anchor is None else None), torch.stack(losses).mean(0)

    def share(self, state: ProxState) -> Payload:
        return as_message(state.params, self.setting.masker.layout.weights)

    def fuse(self, state: ProxState, received: Payload, mixing: Mixing, clock: Clock) -> ProxState:  # noqa: ARG002
        if state.anchor is None:
            return ProxState(mix(received, neighbour_mean(mixing, self.options.neighbours)))
        heard = mix(received, mixing.open_mean)  # [A, P]
        return ProxState(state.params, torch.where(mixing.degree[:, None] > 0, heard, state.anchor))

    def local_model(self, state: ProxState) -> Tensor:
        return state.params

    def unmixed_model(self, payload: Payload) -> Tensor:
        return as_params(payload)


@dataclass(frozen=True)
class DittoState:
    agreed: Tensor  # [A, P] x
    personal: Tensor  # [A, P] x'
    velocity: Tensor | None = None  # [A, P] of x, where momentum is on
    personal_velocity: Tensor | None = None  # [A, P] of x'


@algorithms.register("ditto")
class Ditto(Algorithm[DittoState]):
    """Ditto over DSGD: a personal model beside the agreed one, pulled towards it."""

    recordable = ("learn", "fuse")

    class Options(MomentumOptions):
        closeness: Annotated[float, Field(ge=0)] = Field(
            0.3, description="λ, how strongly the personal model is pulled towards the agreed one"
        )

    def __init__(self, options: Options, setting: Setting) -> None:
        self.options, self.setting = options, setting

    def init(self, agents: Agents) -> DittoState:
        start, momentum = common_start(self.setting.masker, agents), self.options.momentum
        return DittoState(start, start.clone(), first_velocity(start, momentum), first_velocity(start, momentum))

    def learn(self, state: DittoState, data: LocalData, clock: Clock) -> tuple[DittoState, Tensor]:
        batch, gradient_of, options = data.batch(clock), self.setting.network.gradient, self.options
        summed = add_momentum(gradient_of(state.agreed, batch)[0], state.velocity, options.momentum)
        own, loss = gradient_of(state.personal, batch)
        own = own + options.closeness * (state.personal - state.agreed)
        own_summed = add_momentum(own, state.personal_velocity, options.momentum)
        learned = DittoState(
            state.agreed - descent(state.agreed, summed, options, clock),
            state.personal - descent(state.personal, own_summed, options, clock),
            summed if options.momentum else None,
            own_summed if options.momentum else None,
        )
        return learned, loss

    def share(self, state: DittoState) -> Payload:
        return as_message(state.agreed, self.setting.masker.layout.weights)

    def fuse(self, state: DittoState, received: Payload, mixing: Mixing, clock: Clock) -> DittoState:  # noqa: ARG002
        return replace(state, agreed=mix(received, mixing.metropolis_mean))

    def local_model(self, state: DittoState) -> Tensor:
        return state.personal

    def unmixed_model(self, payload: Payload) -> Tensor:
        return as_params(payload)
