"""CHOCO-SGD: agents send only the largest changes of their models, and mix copies that all receivers have in common.

x̂_i is the public copy of agent i: what its receivers know of x_i. It begins as the common start.

    learn   x½ = x − η (∇f(x) + ω x)
            q  = Top_k(x½ − x̂)                     the k largest of all parameters, zeros elsewhere
    share   q
    fuse    x̂  ← x̂ + q;   s ← s + Σ_j W_ij q_j     s = Σ_j W_ij x̂_j
            x  = x½ + γ (s − x̂)

What is not sent stays in x½ − x̂, and is sent once it is large enough. With k = all and γ = 1 this is DSGD. A message
that is lost would be missing in s for good, so every one must arrive: links that change, asynchronous runs, and fleets
that do not wait are refused.

Koloskova, Stich, Jaggi: Decentralized stochastic optimization and gossip with compressed communication (2019).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, algorithms
from peermask.algorithms.descent import MomentumOptions, common_start, first_velocity, momentum_step
from peermask.algorithms.message import as_message, mix
from peermask.graph.mixing import Mixing
from peermask.masks.select import top_fraction_by_layer
from peermask.wire.schema import Payload


@dataclass(frozen=True)
class State:
    params: Tensor  # [A, P] x
    public: Tensor  # [A, P] x̂
    mixed: Tensor  # [A, P] s
    velocity: Tensor | None = None  # [A, P] g summed over rounds, where momentum is on; never sent
    change: Tensor | None = None  # [A, P] q, from learn to fuse


@algorithms.register("choco")
class Choco(Algorithm[State]):
    """CHOCO-SGD: decentralised gradient descent that sends only the largest changes of a model."""

    needs_every_message: ClassVar[bool] = True
    recordable = ("learn", "fuse")

    class Options(MomentumOptions):
        topk: Annotated[float, Field(gt=0, le=1)] = Field(0.01, description="k, the share of parameters that is sent")
        consensus: Annotated[float, Field(gt=0, le=1)] = Field(
            0.03, description="γ, how far a model moves towards the mean of public copies"
        )

    options: Options

    def init(self, agents: Agents) -> State:
        start = common_start(self.masker, agents)
        return State(start, start.clone(), start.clone(), first_velocity(start, self.options.momentum))

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        batch = data.batch(clock)
        step, velocity, loss = momentum_step(self.setting, state.params, state.velocity, batch, self.options, clock)
        params = state.params - step
        change = self._largest(params - state.public) if clock.is_last_batch else None
        return replace(state, params=params, velocity=velocity, change=change), loss

    def share(self, state: State) -> Payload:
        assert state.change is not None
        return as_message(state.change, self.masker.layout.weights)

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        assert state.change is not None
        sent = mix(received, lambda leaf: leaf[mixing.own])  # as all have it, perhaps rounded
        public, known = state.public + sent, state.mixed + mix(received, mixing.metropolis_mean)
        params = state.params + self.options.consensus * (known - public)
        return replace(state, params=params, public=public, mixed=known, change=None)

    def local_model(self, state: State) -> Tensor:
        return state.params

    def _largest(self, away: Tensor) -> Tensor:
        """The k entries of each row that are largest in magnitude, and 0 elsewhere: [A, P]."""
        width = away.shape[1]
        keep = torch.full((len(away), 1), max(1, round(self.options.topk * width)), device=away.device)
        return torch.where(top_fraction_by_layer(away.abs(), keep, (width,)), away, 0.0)
