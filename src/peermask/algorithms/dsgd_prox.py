"""DSGDProx: FedProx on a graph, in the two readings that differ from DSGD.

    personal (P1)   x ← x − η (∇f(x) + ω x + μ (x − a));   share x;   a ← mean of the neighbours' x_j
    literal (P2)    a ← x;   E steps of x ← x − η (∇f(x) + ω x + μ (x − a));   share x;   x ← Σ_j W_ij x_j

With a single step the literal form *is* DSGD: the pull μ (x − a) is zero where x starts. The paper's figures for
DSGDProx lie far above those for DSGD, so the personal form, in which x is never overwritten, is the default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, algorithms
from peermask.algorithms.descent import DescentOptions, common_start, descent
from peermask.algorithms.message import Neighbours, as_message, as_params, mix, neighbour_mean
from peermask.graph.mixing import Mixing
from peermask.wire.schema import Payload


@dataclass(frozen=True)
class State:
    params: Tensor  # [A, P] x
    anchor: Tensor | None = None  # [A, P] a, in the personal form
    first: Tensor | None = None  # [A, P] the round's first model, from learn to fuse, in the literal form


@algorithms.register("dsgd-prox")
class DsgdProx(Algorithm[State]):
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

    options: Options

    def init(self, agents: Agents) -> State:
        params = common_start(self.masker, agents)
        return State(params, params.clone() if self.options.form == "personal" else None)

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        first = state.params if state.first is None else state.first
        anchor = first if state.anchor is None else state.anchor
        params, losses = state.params, []
        for number in range(1 if self.options.form == "personal" else self.options.local_steps):
            gradient, loss = self.setting.network.gradient(params, data.batch(clock, number))
            pulled = gradient + self.options.mu * (params - anchor)  # [A, P]
            params = params - descent(params, pulled, self.options, clock)
            losses.append(loss)
        return State(params, state.anchor, first if state.anchor is None else None), torch.stack(losses).mean(0)

    def share(self, state: State) -> Payload:
        return as_message(state.params, self.masker.layout.weights)

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        if state.anchor is None:
            return State(mix(received, neighbour_mean(mixing, self.options.neighbours)))
        heard = mix(received, mixing.open_mean)  # [A, P]
        return State(state.params, torch.where(mixing.degree[:, None] > 0, heard, state.anchor))

    def local_model(self, state: State) -> Tensor:
        return state.params

    def unmixed_model(self, payload: Payload) -> Tensor:
        return as_params(payload)
