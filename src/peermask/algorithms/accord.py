"""accord: scores are pulled towards the neighbours' masks, and each agent deploys a personal mask beside the agreed.

One round of agent i, which hears k neighbours; s_l is the mean of |z| over a layer, b the agent's own votes, at most k:

    learn   G   = ∂f/∂v ⊙ w ⊙ sign(z);   u ← β u + G;   z½ = z − η (û + ω z)      û: descent.py
            m½  = Thres(|z½| + κ s n)                       with the n of the round before
    share   m½
    fuse    n   = (Σ_j m½_j + b m½) / (k + b)               over neighbours that are believed (masks/guard.py)
            z   = z½ + γ s sign(z½) ⊙ (n − m½)              the pull
            m   = Thres(|z| + κ s n)                        the agreed mask

MCE-PL's votes change which entries are *selected* and never reach the scores, so its agents drift apart. The pull moves
the scores themselves; the term with κ, which is MCE-PL's, keeps masks stable between rounds, and messages short. Own
votes do both, but never outvote the neighbours, or an agent with few of them would hardly move.

The agreed mask is good for all agents, and the best for none. So in the second half of the rounds (`personal_from`) an
agent also learns a mask of its own, which starts as the agreed one, is pulled gently towards it, and is never sent:

    learn   z'  ← z' − η' (û' + ω z'), by the gradient of w ⊙ m' on half of the batch
            z'  ← z' + γ' s sign(z') ⊙ (n − Thres(|z'| + κ s n₀));   γ' = 0.15 / sqrt(own training samples)
            m'  = Thres(|z'| + κ s n₀)                      the deployed model is w ⊙ m'; before those rounds, w ⊙ m

n₀ are the votes of the round in which it starts. With the present ones, κ would tie the personal mask to the agreed one
as it changes, and an agent would not learn which labels it meets.

Where links change from round to round, what was heard before still counts, less by its age: a mask of a rounds ago
counts ρ^a times among Σ_j and k. These are whole sixteenths, so that votes stay counts.

An agent that has never heard anybody has n = 0, and does ind-mask's round with the same step. One that has, and hears
nobody now, has n = m½: it is not pulled, and its masks do not change at once, as they would without the term with κ.

All keep as many weights as the agent with the smallest retention can: masks of different densities pull each other
apart, and a common core that all can carry is better than any of them. docs/collaboration.md has what each part is
worth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, MaskCounts, algorithms
from peermask.algorithms.descent import (
    Lr,
    Schedule,
    ScoreOptions,
    first_velocity,
    learning_rate,
    opening_masks,
    score_step,
)
from peermask.compute.network import Batch
from peermask.graph.mixing import Mixing
from peermask.graph.sums import count_votes
from peermask.masks.aggregation import add_own_votes, aggregated_magnitude, join_scores, pull_scores
from peermask.masks.guard import Guard, believed_links
from peermask.wire.schema import Payload

UNIT = 16  # of votes that count by age


@dataclass(frozen=True)
class Personal:
    """A mask that never leaves its agent; before it starts, the agreed one."""

    scores: Tensor  # [A, P_w] z'
    mask: Tensor  # [A, P_w] m'
    velocity: Tensor | None  # [A, P_w] u', where momentum is on; 0 at the start
    votes: Tensor  # [A, P_w] n₀ = votes / voters, of the round in which it starts
    voters: Tensor  # [A]


@dataclass(frozen=True)
class VoteMemory:
    """Votes of others by their age, in sixteenths: those of this round count 16, of the one before 16 ρ, and so on."""

    votes: Tensor  # [A, P_w]
    voters: Tensor  # [A]


@dataclass(frozen=True)
class State:
    scores: Tensor  # [A, P_w] z
    mask: Tensor  # [A, P_w] m, the agreed mask
    votes: Tensor  # [A, P_w] how many of those believed keep each weight, with the agent's own votes
    voters: Tensor  # [A] how many those are; n = votes / voters
    keep: Tensor  # [A, L] K_l
    velocity: Tensor | None = None  # [A, P_w] u, where momentum is on
    proposal: Tensor | None = None  # [A, P_w] m½, from learn to fuse
    heard: VoteMemory | None = None  # where links change
    personal: Personal | None = None  # where there is one


@algorithms.register("accord")
class Accord(Algorithm[State]):
    """Masks travel and pull the scores: a consensus on weights, and beside it a personal mask that is deployed."""

    over_frozen_weights: ClassVar[bool] = True
    common_retention: ClassVar[bool] = True
    recordable = ("learn", "fuse")

    class Options(ScoreOptions):
        lr: Lr = Field("auto", description="η, step size of the scores; auto, of relative steps: min(0.1, 8 / batches)")
        step: Literal["absolute", "relative"] = Field(
            "relative", description="follow the gradient itself, or in each layer its direction in units of the scores"
        )
        schedule: Schedule = Field("cosine", description="how η changes over the run")
        weight_decay: Annotated[float, Field(ge=0)] = Field(5e-4, description="ω, on the scores, only in learn")
        momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
            0.9, description="β, how much of the last round's G is kept"
        )
        own_votes: Annotated[int, Field(ge=0, le=100)] = Field(
            5, description="b, as how many voters an agent's own mask counts; at most as many as it hears"
        )
        pull: Annotated[float, Field(ge=0)] = Field(
            0.6, description="γ, how far scores move towards what the voters keep, in means of |z|"
        )
        vote_gain: Annotated[float, Field(ge=0)] = Field(
            0.8, description="κ, factor on the votes when a mask is selected"
        )
        memory: Annotated[float, Field(ge=0, lt=1)] = Field(
            0.5, description="ρ, where links change: how much votes of the round before still count"
        )
        guard: Guard = Field(
            1.5, description="believe neighbours up to this many times the median distance of masks; 0: believe all"
        )
        personal_from: Annotated[float, Field(gt=0, lt=1)] | Literal["never"] = Field(
            0.5, description="share of the rounds after which an agent learns a personal mask, which is deployed"
        )
        personal_lr: Annotated[float, Field(gt=0)] = Field(0.25, description="η' of the personal mask, in parts of lr")
        personal_pull: Annotated[float, Field(ge=0)] = Field(
            0.15, description="γ' of the personal mask is this / sqrt(an agent's training samples)"
        )

    options: Options

    def init(self, agents: Agents) -> State:
        device, keep = agents.keep.device, agents.keep
        scores = self.masker.initial_scores(self.options.score_init, agents.ids, self.setting.seed).to(device)
        nobody = torch.zeros(len(scores), dtype=torch.int64, device=device)
        votes = torch.zeros_like(scores, dtype=torch.uint8)
        velocity = first_velocity(scores, self.options.momentum)
        heard, memory = None, self.options.memory
        if self.setting.links_change and memory:
            most = UNIT * (UNIT * len(self.setting.retentions) / (1.0 - memory) + self.options.own_votes)
            votes = votes.to(torch.int16 if most < 2**15 else torch.int32)
            heard = VoteMemory(votes, nobody)
        state = State(scores, self.masker.mask(scores, keep), votes, nobody, keep, velocity, heard=heard)
        return self._with_personal(state)

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        batch, mask = data.batch(clock), state.mask if state.proposal is None else state.proposal  # of the batch before
        lr = self.options.scheduled_lr(clock)
        step = score_step(self.setting, self.options, lr, state.scores, mask, state.keep, state.velocity, batch)
        personal = self._personal(state, batch, data.sizes, clock) if self._is_personal(clock) else state.personal
        proposal = self._mask(step.scores, state, state.keep)
        learned = replace(state, scores=step.scores, velocity=step.velocity, proposal=proposal, personal=personal)
        return learned, step.loss

    def share(self, state: State) -> Payload:
        assert state.proposal is not None
        return {"mask": state.proposal}

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:
        proposal, layout = state.proposal, self.masker.layout
        assert proposal is not None
        votes, voters, heard = self._votes(proposal, state, received["mask"], mixing)
        scores = pull_scores(state.scores, votes, voters, proposal, self.options.pull, layout)
        fused = self._with_votes(replace(state, scores=scores, heard=heard, proposal=None), votes, voters)
        return fused if self._is_personal(clock) else self._with_personal(fused)

    def _votes(
        self, proposal: Tensor, state: State, masks: Tensor, mixing: Mixing
    ) -> tuple[Tensor, Tensor, VoteMemory | None]:
        """Votes [A, P_w] and voters [A] of others and the agent itself, and what is remembered of the others'."""
        heard, before, own_votes = mixing.links, state.heard, self.options.own_votes
        if self.options.guard:
            heard = believed_links(proposal, masks, heard, self.masker.layout.sizes, self.options.guard)
        votes, voters = count_votes(heard, masks, mixing.count_dtype_with(own_votes)), heard.voters
        once, after = mixing.own_weight, None
        if before is not None:
            once, part = UNIT, round(UNIT * self.options.memory)
            votes = UNIT * votes.to(before.votes.dtype) + before.votes * part // UNIT
            voters = UNIT * voters + before.voters * part // UNIT
            after = VoteMemory(votes, voters)
        if own_votes:
            # [A]; never more than the others', and 0 until it has heard somebody
            own = torch.where(voters > 0, voters, state.voters).clamp(max=own_votes * once)
            votes, voters = add_own_votes(votes, own, proposal), voters + own
        return votes, voters, after

    def join(self, state: State, received: Payload, mixing: Mixing) -> State:
        # All are believed: an agent that has not learned yet cannot detect lies.
        dtype = mixing.count_dtype_with(self.options.own_votes)
        votes, voters = count_votes(mixing.links, received["mask"], dtype), mixing.degree
        scores = join_scores(state.scores, votes, voters, self.masker.layout)
        return self._with_personal(self._with_votes(replace(state, scores=scores), votes, voters))

    def opening(self, agents: Agents) -> Payload:
        none = torch.zeros(1, self.masker.layout.weights, dtype=torch.uint8)
        init, seed = self.options.score_init, self.setting.seed
        return {"mask": opening_masks(agents, self.masker, init, seed, lambda _one: none, 0.0)}

    def mask_counts(self, agents: Agents) -> MaskCounts:
        return {"mask": self.masker.counts(agents.keep)}

    def local_model(self, state: State) -> Tensor:
        return self.masker.model(state.mask if state.personal is None else state.personal.mask, state.keep)

    def _is_personal(self, clock: Clock) -> bool:
        start = self.options.personal_from
        return start != "never" and clock.is_after(start)

    def _with_personal(self, state: State) -> State:
        """A personal mask that has not started is the agreed one, in the same memory, with a momentum of 0."""
        if self.options.personal_from == "never":
            return state
        scores, before = state.scores, state.personal
        rest = first_velocity(scores, self.options.momentum) if before is None else before.velocity
        return replace(state, personal=Personal(scores, state.mask, rest, state.votes, state.voters))

    def _personal(self, state: State, batch: Batch, samples: Tensor, clock: Clock) -> Personal:
        """One step of the personal mask; samples [A] are the agents' own."""
        before, options = state.personal, self.options
        assert before is not None
        assert options.personal_from != "never"
        lr = learning_rate(
            options.personal_lr * options.first_lr(clock), options.schedule, clock, options.personal_from
        )
        half = batch.half()  # as good as the whole, at half the cost
        step = score_step(self.setting, options, lr, before.scores, before.mask, state.keep, before.velocity, half)
        gain = options.personal_pull / samples.sqrt()  # [A]
        mask = self._mask(step.scores, before, state.keep)
        scores = pull_scores(step.scores, state.votes, state.voters, mask, gain, self.masker.layout)
        return replace(before, scores=scores, mask=self._mask(scores, before, state.keep), velocity=step.velocity)

    def _with_votes(self, state: State, votes: Tensor, voters: Tensor) -> State:
        """Set votes, and the mask that follows from them."""
        voted = replace(state, votes=votes, voters=voters)
        return replace(voted, mask=self._mask(state.scores, voted, state.keep))

    def _mask(self, scores: Tensor, n: State | Personal, keep: Tensor) -> Tensor:
        """Thres(|z| + κ s n)."""
        gain, layout = self.options.vote_gain, self.masker.layout
        return self.masker.select(aggregated_magnitude(scores, n.votes, n.voters, gain, layout), keep)
