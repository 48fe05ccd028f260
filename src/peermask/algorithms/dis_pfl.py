"""Dis-PFL: sparse weights travel with their masks; now and then an agent drops small weights and grows others.

    learn   x ← (x − η (∇f(x) + ω x)) ⊙ m;  every ΔT rounds m' = regrow(fire(m)), else m' = m
    share   x, m
    fuse    x ← m' ⊙ Σ_j x_j / Σ_j m_j (0 where no agent holds an entry);  m ← m';  biases: the closed mean

As many weights grow as are dropped, so every layer keeps its count exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import cos, pi, prod
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, MaskCounts, algorithms
from peermask.algorithms.descent import (
    MomentumOptions,
    add_momentum,
    common_start,
    descent,
    first_velocity,
    mask_weights,
)
from peermask.algorithms.message import as_message, as_params, holders_mean, mix_rest
from peermask.graph.mixing import Mixing
from peermask.masks.select import top_fraction_by_layer
from peermask.models.layout import Layout
from peermask.streams import stream
from peermask.wire.schema import Payload

# Erdős–Rényi-kernel densities: how sparse networks that are trained sparse share their weights among layers.


def erk_densities(shapes: Sequence[Sequence[int]], total: float) -> list[float]:
    """k_l = min(1, ε Σ shape / Π shape), with the ε that keeps `total` of all weights."""
    sizes = [prod(shape) for shape in shapes]
    raw = [sum(shape) / size for shape, size in zip(shapes, sizes, strict=True)]
    dense: set[int] = set()
    while True:
        sparse = [layer for layer in range(len(sizes)) if layer not in dense]
        if not sparse:
            return [1.0] * len(sizes)
        left = total * sum(sizes) - sum(sizes[layer] for layer in dense)
        epsilon = left / sum(raw[layer] * sizes[layer] for layer in sparse)
        over = {layer for layer in sparse if epsilon * raw[layer] > 1.0}
        if not over:
            return [1.0 if layer in dense else epsilon * raw[layer] for layer in range(len(sizes))]
        # Only the densest is capped at a time, as each one capped leaves more for the others.
        dense.add(max(over, key=lambda layer: raw[layer]))


def erk_counts(layout: Layout, retentions: Sequence[float]) -> Tensor:
    """K_l of every agent: its retention over all masked weights, shared out by ERK."""
    shapes, sizes = [layer.shape for layer in layout.masked], torch.tensor(layout.sizes)
    densities = torch.tensor([erk_densities(shapes, r) for r in retentions], dtype=torch.float64)  # [A, L]
    return (densities * sizes).round().long().clamp(min=1).minimum(sizes)


@dataclass(frozen=True)
class State:
    params: Tensor  # [A, P] x, zero outside m
    mask: Tensor  # [A, P_w] m
    ids: Tensor  # [A] the agents of these rows
    velocity: Tensor | None = None  # [A, P] where momentum is on; never sent
    next_mask: Tensor | None = None  # [A, P_w] m', from learn to fuse


@algorithms.register("dis-pfl")
class DisPfl(Algorithm[State]):
    """Personal sparse models whose masks move by dropping and regrowing weights."""

    recordable = ("fuse",)

    class Options(MomentumOptions):
        lr: Annotated[float, Field(gt=0)] = Field(0.1, description="η, step size of the parameters")
        drop: Annotated[float, Field(ge=0, lt=1)] = Field(
            0.5, description="α, share of a layer's weights dropped at first; falls as a cosine over the run"
        )
        update_every: Annotated[int, Field(ge=1)] = Field(20, description="ΔT, rounds between two changes of the mask")
        update_until: Annotated[float, Field(ge=0, le=1)] = Field(
            1.0, description="share of the run after which masks are fixed"
        )
        regrow: Literal["gradient", "random"] = Field("gradient", description="what decides which weights grow")
        allocation: Literal["erk", "matched"] = Field(
            "erk", description="how a retention is shared among layers: by ERK, or as all other methods do"
        )
        clip: Annotated[float, Field(ge=0)] = Field(0.0, description="largest norm of a gradient; 0: no limit")

    options: Options

    def init(self, agents: Agents) -> State:
        params, device = common_start(self.masker, agents), agents.keep.device
        draws = self._draws("dis-pfl/first", agents.ids, 0).to(device)
        mask = top_fraction_by_layer(draws, self._counts(agents), self.masker.layout.sizes)
        velocity = first_velocity(params, self.options.momentum)
        return State(mask_weights(mask, params), mask, torch.tensor(agents.ids, device=device), velocity)

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        gradient, loss = self.setting.network.gradient(state.params, data.batch(clock))
        if self.options.clip:
            gradient = gradient * (self.options.clip / gradient.norm(dim=1, keepdim=True)).clamp(max=1.0)
        direction, velocity = add_momentum(gradient, state.velocity, self.options.momentum)
        params = mask_weights(state.mask, state.params - descent(state.params, direction, self.options, clock))
        mask = state.mask
        due = clock.round % self.options.update_every == 0 and clock.is_last_batch
        if due and clock.progress < self.options.update_until:
            mask = self._regrow(params, state, data, clock)
        return replace(state, params=params, velocity=velocity, next_mask=mask), loss

    def share(self, state: State) -> Payload:
        return {"mask": state.mask, **as_message(state.params, self.masker.layout.weights)}

    def mask_counts(self, agents: Agents) -> MaskCounts:
        counts = self._counts(agents)
        return {"mask": (counts, counts)}

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        assert state.next_mask is not None
        weights = holders_mean(mixing, received["weights"], received["mask"], 0.0) * state.next_mask  # [A, P_w]
        params = mix_rest(weights, received, mixing.closed_mean)
        return replace(state, params=params, mask=state.next_mask, next_mask=None)

    def local_model(self, state: State) -> Tensor:
        return state.params

    def unmixed_model(self, payload: Payload) -> Tensor:
        return as_params(payload)

    def _regrow(self, params: Tensor, state: State, data: LocalData, clock: Clock) -> Tensor:
        """m' from the trained weights, and the dense gradient there on a separate batch."""
        if self.options.regrow == "random":
            wish = self._draws("dis-pfl/grow", tuple(state.ids.tolist()), clock.round).to(params.device)
        else:
            gradient, _ = self.setting.network.gradient(params, data.batch(clock, 1))
            wish = gradient[:, : self.masker.layout.weights].abs()
        share = 0.5 * self.options.drop * (1.0 + cos(pi * clock.round / clock.rounds))
        return fire_and_regrow(
            self.masker.layout, state.mask, params[:, : self.masker.layout.weights].abs(), wish, share
        )

    def _counts(self, agents: Agents) -> Tensor:
        """K_l of every agent, [A, L]."""
        if self.options.allocation == "erk":
            return erk_counts(self.masker.layout, agents.retention.tolist()).to(agents.keep.device)
        return agents.keep

    def _draws(self, purpose: str, ids: tuple[int, ...], round: int) -> Tensor:
        """A random number in (0, 1) for every weight, from each agent's own stream."""
        rows = [stream(self.setting.seed, purpose, agent, round).uniform(self.masker.layout.weights) for agent in ids]
        return torch.from_numpy(np.stack(rows).astype(np.float32))  # [A, P_w]


def fire_and_regrow(layout: Layout, mask: Tensor, magnitude: Tensor, wish: Tensor, share: float) -> Tensor:
    """Drop ⌈α K_l⌉ of each layer's smallest weights, never all, and grow as many by the largest wish."""
    alive = torch.stack([mask[:, layer.span].sum(1) for layer in layout.masked], dim=1)  # [A, L]
    dropped = torch.minimum((share * alive.double()).ceil().long(), alive - 1)
    # A weight on the mask that is exactly zero ranks above all that are not on it.
    ranked = torch.where(mask, magnitude.clamp(min=1e-30), 0.0)
    stays = top_fraction_by_layer(ranked, (alive - dropped).clamp(min=1), layout.sizes)
    return top_fraction_by_layer(torch.where(stays, torch.finfo(wish.dtype).max, wish), alive, layout.sizes)
