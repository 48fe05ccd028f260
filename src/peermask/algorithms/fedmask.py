"""FedMask on a graph, rebuilt from the paper's description: binary masks travel and are averaged where they overlap.

support (F1)   a fixed support R_i of r_i of the weights, found by a first pass over the data; m = 1[s > 0] ⊙ R
               learn   s ← s − η (∂f/∂v ⊙ w ⊙ σ'(s)) on R
               share   m, R
               fuse    ā = Σ_j m_j / Σ_j R_j; on R where two or more hold an entry and ā ≠ ½:
                       s ← (1 − β) s + β logit(clip(ā, ε, 1 − ε))
overlap (F2)   no support; m = 1[s > 0], s first +δ on r_i of the weights and −δ elsewhere
               fuse    s ← −δ where too few of an agent and its neighbours keep an entry it keeps
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from peermask import registry
from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, MaskCounts, algorithms
from peermask.algorithms.descent import Schedule, learning_rate
from peermask.graph.mixing import Mixing
from peermask.masks.scores import ScoreInit
from peermask.wire.schema import Payload


@dataclass(frozen=True)
class State:
    scores: Tensor  # [A, P_w] s
    keep: Tensor  # [A, L] K_l
    support: Tensor | None = None  # [A, P_w] R, in F1; all ones until the first round


@algorithms.register("fedmask")
class FedMask(Algorithm[State]):
    """Binary masks averaged where they overlap; scores are reset from the average."""

    over_frozen_weights: ClassVar[bool] = True
    recordable = ("fuse",)

    class Options(registry.Options):
        variant: Literal["support", "overlap"] = Field(
            "support", description="F1: votes inside each agent's fixed support; F2: masks shrink to what others keep"
        )
        lr: Annotated[float, Field(gt=0)] = Field(1.0, description="η, step size of the scores")
        schedule: Schedule = Field("constant", description="how η changes over the run")
        delta: Annotated[float, Field(gt=0)] = Field(0.01, description="δ, size of the first scores")
        through: Literal["sigmoid", "identity"] = Field(
            "sigmoid", description="gradient through the threshold: that of the sigmoid, or 1"
        )
        warmup_steps: Annotated[int, Field(ge=1)] = Field(
            4, description="F1: batches that find the support, in the first round; about one pass over the data"
        )
        beta: Annotated[float, Field(gt=0, le=1)] = Field(
            1.0, description="F1: β, how far the vote replaces an agent's own scores; 1 forgets them each round"
        )
        epsilon: Annotated[float, Field(gt=0, lt=0.5)] = Field(0.05, description="F1: ε, bounds of the vote")
        rule: Literal["majority", "intersect"] = Field("majority", description="F2: how many must keep an entry")
        score_init: ScoreInit = Field("shared", description="F2: one draw of the first masks for all agents, or each")

    options: Options

    def init(self, agents: Agents) -> State:
        layout, device, delta = self.masker.layout, agents.keep.device, self.options.delta
        if self.options.variant == "support":
            scores = torch.full((len(agents.ids), layout.weights), delta, device=device)
            return State(scores, agents.keep, torch.ones_like(scores, dtype=torch.bool))
        draws = self.masker.initial_scores(self.options.score_init, agents.ids, self.setting.seed).to(device)
        kept = self.masker.mask(draws, agents.keep)
        return State(torch.where(kept, delta, -delta), agents.keep)

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        if state.support is None or clock.round > 1 or clock.batch > 0:
            return self._step(state, data, clock, 0)
        for number in range(self.options.warmup_steps):
            state, _ = self._step(state, data, clock, number)
        return self._step(self._with_support(state), data, clock, self.options.warmup_steps)

    def share(self, state: State) -> Payload:
        payload = {"mask": self._mask(state)}
        return payload if state.support is None else {**payload, "support": state.support}

    def mask_counts(self, agents: Agents) -> MaskCounts:
        if self.options.variant == "overlap":  # as many as have a positive score
            return {}
        least, most = self.masker.counts(agents.keep)
        return {"mask": (torch.zeros_like(most), most), "support": (least, most)}

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        votes = mixing.count_closed(received["mask"])  # [A, P_w]
        if state.support is None:
            least = mixing.closed_voters[:, None]  # [A, 1]
            few = votes < least if self.options.rule == "intersect" else 2 * votes.long() < least
            return replace(state, scores=torch.where(self._mask(state) & few, -self.options.delta, state.scores))
        holders = mixing.count_closed(received["support"]).long()  # [A, P_w]
        decided = state.support & (holders > mixing.own_weight) & (2 * votes.long() != holders)
        vote = (votes / holders.clamp(min=1)).logit(eps=self.options.epsilon)
        beta = self.options.beta
        return replace(state, scores=torch.where(decided, (1.0 - beta) * state.scores + beta * vote, state.scores))

    def local_model(self, state: State) -> Tensor:
        return self.masker.model(self._mask(state), state.keep)

    def _mask(self, state: State) -> Tensor:
        """m = 1[σ(s) > ½] ⊙ R."""
        on = state.scores > 0
        return on if state.support is None else on & state.support

    def _step(self, state: State, data: LocalData, clock: Clock, number: int) -> tuple[State, Tensor]:
        """s ← s − η ∂f/∂v ⊙ w ⊙ σ'(s), on R: the gradient passes the threshold as if it were a sigmoid."""
        gradient, loss = self.setting.network.gradient(self.local_model(state), data.batch(clock, number))
        step = gradient[:, : self.masker.layout.weights] * self.masker.weights(state.keep)
        if self.options.through == "sigmoid":
            likely = state.scores.sigmoid()
            step = step * likely * (1.0 - likely)
        if state.support is not None:
            step = step * state.support
        lr = learning_rate(self.options.lr, self.options.schedule, clock)
        return replace(state, scores=state.scores - lr * step), loss

    def _with_support(self, state: State) -> State:
        """R_i: the highest scores of each layer; they start again at +δ."""
        layers = [state.scores[:, layer.span] for layer in self.masker.layout.masked]
        above_lowest = torch.cat([scores - scores.amin(dim=1, keepdim=True) for scores in layers], dim=1)  # [A, P_w]
        support = self.masker.mask(above_lowest, state.keep)
        return replace(state, support=support, scores=torch.where(support, self.options.delta, state.scores))
