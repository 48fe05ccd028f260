"""MCE-PL: agents send their binary masks, and fuse their neighbours' through an aggregation tensor.

One round of agent i (paper, Algorithm 1), n_i being the mean of its neighbours' masks:

    learn   G   = ∂f/∂v ⊙ w ⊙ sign(z)                     Eq. (15)
            z½  = z − η (G + ω z + λ ∂R/∂z)               Eq. (14)
            m½  = Fil[Thres(|y(z½, n)|)]                  Eq. (16), with the n of the round before
    share   m½
    fuse    n   = mean of m½_j over the neighbours        with `guard`, over those believed (masks/guard.py)
            z   = z½ − η_ft G ⊙ n                         Eq. (17), fine-tuning
            m   = Fil[Thres(|y(z, n)|)]                   Eq. (18), (19): the deployed model is w ⊙ m

An agent that joins later starts from y(z, n), n being the mean of its neighbours' masks then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, MaskCounts, algorithms
from peermask.algorithms.descent import ScoreOptions, first_velocity, learning_rate, opening_masks, score_step
from peermask.graph.mixing import Mixing
from peermask.graph.sums import count_votes
from peermask.masks.aggregation import aggregated_magnitude, fine_tune, join_scores
from peermask.masks.guard import Guard, believed_links
from peermask.masks.masker import Masker, share_kept
from peermask.masks.scores import keep_sign
from peermask.streams import stream
from peermask.wire.schema import Payload

FirstVotes = Literal["common", "retention", "none"]


@dataclass(frozen=True)
class State:
    scores: Tensor  # [A, P_w] z
    mask: Tensor  # [A, P_w] m, the deployed mask
    votes: Tensor  # [A, P_w] how many neighbours keep each weight
    voters: Tensor  # [A] how many neighbours were counted; n = votes / voters
    keep: Tensor  # [A, L] K_l
    velocity: Tensor | None = None  # [A, P_w] G summed over rounds, where momentum is on
    gradient: Tensor | None = None  # [A, P_w] G, or û, from learn to fuse
    proposal: Tensor | None = None  # [A, P_w] m½, from learn to fuse


@algorithms.register("mce-pl")
class McePl(Algorithm[State]):
    """The paper's method: masks travel, are averaged, and pull the scores where neighbours agree."""

    over_frozen_weights: ClassVar[bool] = True
    recordable = ("learn", "fuse")

    class Options(ScoreOptions):
        lr_fine_tune: Annotated[float, Field(ge=0)] | None = Field(
            None, description="η_ft, of the fine-tuning step; as lr if not set"
        )
        first_votes: FirstVotes = Field(
            "common", description="n before the first exchange: one draw for all, a draw with each agent's r_i, or 0"
        )
        first_vote_share: Annotated[float, Field(ge=0, le=1)] = Field(
            0.3, description="share of ones in the common first draw, in convolutions; linear layers use mask.fc_keep"
        )
        aggregation_gain: Annotated[float, Field(ge=0)] = Field(1.0, description="factor on the neighbours' term of y")
        guard: Guard | None = Field(
            None,
            description="believe neighbours up to this many times the median distance of masks; 0 or none: believe all",
        )

    options: Options

    def init(self, agents: Agents) -> State:
        seed, device = self.setting.seed, agents.keep.device
        scores = self.masker.initial_scores(self.options.score_init, agents.ids, seed).to(device)
        votes = first_votes(self.masker, self.options, agents, seed).to(device)
        voters = torch.ones(len(scores), dtype=torch.int64, device=device)
        mask = self._mask(scores, votes, voters, agents.keep)
        return State(scores, mask, votes, voters, agents.keep, first_velocity(scores, self.options.momentum))

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        mask = state.mask if state.proposal is None else state.proposal  # of the batch before
        lr = self.options.scheduled_lr(clock)
        batch = data.batch(clock)
        step = score_step(self.setting, self.options, lr, state.scores, mask, state.keep, state.velocity, batch)
        proposal = self._mask(step.scores, state.votes, state.voters, state.keep)
        learned = replace(state, scores=step.scores, velocity=step.velocity, gradient=step.direction, proposal=proposal)
        return learned, step.loss

    def share(self, state: State) -> Payload:
        assert state.proposal is not None
        return {"mask": state.proposal}

    def opening(self, agents: Agents) -> Payload:
        options, seed = self.options, self.setting.seed
        votes = partial(first_votes, self.masker, options, seed=seed)
        return {"mask": opening_masks(agents, self.masker, options.score_init, seed, votes, options.aggregation_gain)}

    def mask_counts(self, agents: Agents) -> MaskCounts:
        return {"mask": self.masker.counts(agents.keep)}

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:
        assert state.gradient is not None
        votes, voters = self._count_votes(state, received["mask"], mixing)
        lr = self.options.first_lr(clock) if self.options.lr_fine_tune is None else self.options.lr_fine_tune
        step = learning_rate(lr, self.options.schedule, clock)
        scores = fine_tune(state.scores, state.gradient, votes, voters, step)
        if self.options.keep_sign:
            scores = keep_sign(scores, state.scores)
        mask = self._mask(scores, votes, voters, state.keep)
        return replace(state, scores=scores, mask=mask, votes=votes, voters=voters, gradient=None, proposal=None)

    def join(self, state: State, received: Payload, mixing: Mixing) -> State:
        # All are believed: an agent that has not learned yet cannot detect lies.
        votes, voters = mixing.count_open(received["mask"]), mixing.degree
        scores = join_scores(state.scores, votes, voters, self.masker.layout)
        mask = self._mask(scores, votes, voters, state.keep)
        return replace(state, scores=scores, mask=mask, votes=votes, voters=voters)

    def _count_votes(self, state: State, masks: Tensor, mixing: Mixing) -> tuple[Tensor, Tensor]:
        """Votes [A, P_w] and voters [A]."""
        if not self.options.guard:
            return mixing.count_open(masks), mixing.voters
        assert state.proposal is not None
        heard = believed_links(state.proposal, masks, mixing.links, self.masker.layout.sizes, self.options.guard)
        return count_votes(heard, masks, mixing.count_dtype), heard.voters

    def local_model(self, state: State) -> Tensor:
        return self.masker.model(state.mask, state.keep)

    def _mask(self, scores: Tensor, votes: Tensor, voters: Tensor, keep: Tensor) -> Tensor:
        gain = self.options.aggregation_gain
        return self.masker.select(aggregated_magnitude(scores, votes, voters, gain, self.masker.layout), keep)


def first_votes(masker: Masker, options: McePl.Options, agents: Agents, seed: int) -> Tensor:
    """m_j^(0): what an agent takes its neighbours' masks to be before it has heard any, as one vote.

    `common` is one draw for every neighbour of every agent, as in the authors' code. It costs no bits, since a seed
    determines it, and it correlates all masks from the start. Layers whose weights were given have no such votes: their
    magnitudes are what agents have in common.
    """
    if options.first_votes == "none":
        return torch.zeros(len(agents.ids), masker.layout.weights, dtype=torch.uint8)
    draws = [stream(seed, f"votes/{layer.name}").uniform(layer.size) for layer in masker.layout.masked]

    def votes(density: float) -> Tensor:
        parts = [
            draw < (0.0 if layer.name in masker.given else share_kept(layer, density, masker.options))
            for draw, layer in zip(draws, masker.layout.masked, strict=True)
        ]
        return torch.from_numpy(np.concatenate(parts).astype(np.uint8))  # [P_w]

    if options.first_votes == "common":
        return votes(options.first_vote_share).repeat(len(agents.ids), 1)  # [A, P_w]
    return torch.stack([votes(float(r)) for r in agents.retention])  # [A, P_w]
