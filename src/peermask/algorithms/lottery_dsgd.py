"""LotteryDSGD: LotteryFL on a graph. Agents prune their own ticket step by step, and average where tickets overlap.

learn   u = θ ⊙ m;  now and then, if u is good enough on held-out data: drop the smallest |u| of m and rewind
        u ← θ0 ⊙ m;  u ← u − η (∇f(u) + ω u) ⊙ m
share   u ⊙ m, m, biases
fuse    θ ← Σ_j u_j / Σ_j m_j where anyone holds an entry, else as it was;  biases: the closed mean
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, MaskCounts, algorithms
from peermask.algorithms.descent import DescentOptions, common_start, descent, mask_weights
from peermask.algorithms.message import as_message, as_params, holders_mean, mix_rest
from peermask.graph.mixing import Mixing
from peermask.masks.masker import Masker
from peermask.wire.schema import Payload

SMALLEST = 1e-30  # replaces a kept weight that is exactly zero, so that it ranks above the dropped ones


@dataclass(frozen=True)
class State:
    params: Tensor  # [A, P] θ; between learn and fuse still the old θ
    mask: Tensor  # [A, P_w] m
    alive: Tensor  # [A, L] entries m keeps: ρ_l n_l
    keep: Tensor  # [A, L] K_l, where pruning ends
    ticket: Tensor | None = None  # [A, P] u, from learn to fuse


@algorithms.register("lottery-dsgd")
class LotteryDsgd(Algorithm[State]):
    """Lottery tickets pruned by each agent and averaged where they overlap."""

    recordable = ("fuse",)

    class Options(DescentOptions):
        lr: Annotated[float, Field(gt=0)] = Field(0.1, description="η, step size of the parameters")
        prune_share: Annotated[float, Field(gt=0, lt=1)] = Field(0.2, description="p, of what is alive, per pruning")
        prune_every: Annotated[int, Field(ge=1)] = Field(20, description="rounds between two chances to prune")
        accuracy_threshold: Annotated[float, Field(ge=0, le=1)] = Field(
            0.5, description="prune only above this accuracy on held-out samples"
        )
        rewind: Literal["local", "sync", "none"] = Field(
            "local",
            description="after pruning go back to the first weights: each agent on its own, all at once whatever "
            "their accuracy, or never",
        )

    options: Options

    def init(self, agents: Agents) -> State:
        params = common_start(self.masker, agents)
        sizes = torch.tensor(self.masker.layout.sizes, device=params.device)  # [L]
        mask = torch.ones(len(params), self.masker.layout.weights, dtype=torch.bool, device=params.device)
        return State(params, mask, sizes.repeat(len(params), 1), agents.keep)

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        ticket = mask_weights(state.mask, state.params) if state.ticket is None else state.ticket
        if clock.round % self.options.prune_every == 0 and clock.batch == 0:
            state, ticket = self._prune(state, ticket, data)
        gradient, loss = self.setting.network.gradient(ticket, data.batch(clock))
        step = mask_weights(state.mask, descent(ticket, gradient, self.options, clock))
        return replace(state, ticket=ticket - step), loss

    def share(self, state: State) -> Payload:
        assert state.ticket is not None
        return {"mask": state.mask, **as_message(state.ticket, self.masker.layout.weights)}

    def mask_counts(self, agents: Agents) -> MaskCounts:
        sizes = torch.tensor(self.masker.layout.sizes, device=agents.keep.device)  # [L]
        return {"mask": (self.masker.counts(agents.keep)[0], sizes.expand_as(agents.keep))}

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        old = state.params[:, : self.masker.layout.weights]
        weights = holders_mean(mixing, received["weights"], received["mask"], old)  # [A, P_w]
        return replace(state, params=mix_rest(weights, received, mixing.closed_mean), ticket=None)

    def local_model(self, state: State) -> Tensor:
        return mask_weights(state.mask, state.params)

    def unmixed_model(self, payload: Payload) -> Tensor:
        return as_params(payload)

    def _prune(self, state: State, ticket: Tensor, data: LocalData) -> tuple[State, Tensor]:
        """One pruning of the agents that are due; other rows do not change."""
        due = (state.alive > state.keep).any(1)  # [A]
        if self.options.rewind != "sync":
            due &= data.validation_accuracy(ticket) > self.options.accuracy_threshold
        alive = torch.where(due[:, None], pruned_counts(state.alive, state.keep, self.options.prune_share), state.alive)
        mask = torch.where(due[:, None], prune_ticket(self.masker, ticket, state.mask, alive), state.mask)
        rewound = ticket if self.options.rewind == "none" else self.masker.frozen.expand_as(ticket)
        ticket = mask_weights(mask, torch.where(due[:, None], rewound, ticket))
        return replace(state, mask=mask, alive=alive), ticket


def pruned_counts(alive: Tensor, keep: Tensor, share: float) -> Tensor:
    """max(ρ (1 − p), k) as counts: never below the target, which LotteryFL's own code overshoots."""
    return torch.maximum((alive.double() * (1.0 - share)).round().long(), keep)  # [A, L]


def prune_ticket(masker: Masker, ticket: Tensor, mask: Tensor, alive: Tensor) -> Tensor:
    """The largest |u| among what is alive."""
    magnitude = ticket[:, : mask.shape[1]].abs().clamp(min=SMALLEST) * mask  # [A, P_w]
    return masker.mask(magnitude, alive)
