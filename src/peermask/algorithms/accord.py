"""accord: scores are pulled towards the neighbours' masks, so that agents come to agree, and answer as persons.

One round of agent i, n_i being the mean of its neighbours' masks and s_l the mean of |z| over a layer:

    learn   G   = ∂f/∂v ⊙ w ⊙ sign(z);   u ← β u + G;   z½ = z − η (u + ω z)
            m½  = Thres(|z½| + κ s n)                       with the n of the round before
    share   m½
    fuse    n   = mean of m½_j over the neighbours that are believed (masks/guard.py)
            z   = z½ + γ s sign(z½) ⊙ (n − m½)              the pull
            m   = Thres(|z| + κ s n)                        the deployed model is w ⊙ m

MCE-PL's votes change which entries are *selected* and never reach the scores, so its agents drift apart. The pull moves
the scores themselves; the term with κ, which is MCE-PL's, keeps masks stable between rounds, and messages short. An
agent without messages is not pulled, and does ind-mask's round with the same momentum. Agents of different retentions
learn at two levels (masks/levels.py): all at the lower, and those that can carry it a second mask at the higher. An
agent answers among the labels that it has seen (`readout`): a consensus knows all labels, and would often choose one
that the agent never meets.

docs/collaboration.md has what each part is worth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, MaskCounts, Payload, Setting, algorithms
from peermask.algorithms.opening import opening_masks
from peermask.algorithms.optimiser import Schedule, first_velocity
from peermask.algorithms.score_step import ScoreOptions, score_step
from peermask.graph.links import Links
from peermask.graph.mixing import Mixing
from peermask.graph.sums import count_votes
from peermask.masks.aggregation import aggregated_magnitude, joined, pulled
from peermask.masks.budget import kept_counts
from peermask.masks.guard import Guard, believed, ones_heard
from peermask.masks.levels import Levels, level_of, levels_of
from peermask.models.network import Batch
from peermask.models.readout import Readout


@dataclass(frozen=True)
class State:
    scores: Tensor  # [A, P_w] z
    mask: Tensor  # [A, P_w] m, the deployed mask
    votes: Tensor  # [A, P_w] how many of those believed keep each weight
    voters: Tensor  # [A] how many those are; n = votes / voters
    keep: Tensor  # [A, L] K_l, at the agent's level
    velocity: Tensor | None = None  # [A, P_w] u, where momentum is on
    proposal: Tensor | None = None  # [A, P_w] m½, from learn to fuse
    able: Tensor | None = None  # [A] which agents can carry this level; None: all
    above: State | None = None  # the same at the higher level, where agents learn at two


@algorithms.register("accord")
class Accord(Algorithm[State]):
    """Masks travel and pull the scores: a consensus on weights, answered by each agent among its own labels."""

    over_frozen_weights: ClassVar[bool] = True
    readout: ClassVar[Readout] = "own"

    class Options(ScoreOptions):
        lr: Annotated[float, Field(gt=0)] = Field(0.5, description="η, step size of the scores")
        schedule: Schedule = Field("cosine", description="how η changes over the run")
        weight_decay: Annotated[float, Field(ge=0)] = Field(5e-4, description="ω, on the scores, only in learn")
        momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
            0.9, description="β, how much of the last round's G is kept"
        )
        pull: Annotated[float, Field(ge=0)] = Field(
            0.3, description="γ, how far scores move towards the neighbours' masks, in means of |z|"
        )
        vote_gain: Annotated[float, Field(ge=0)] = Field(
            0.6, description="κ, factor on the neighbours' votes when a mask is selected"
        )
        guard: Guard = Field(
            1.5, description="believe neighbours up to this many times the median distance of masks; 0: believe all"
        )
        levels: Levels = Field(
            "nested",
            description="densities of agents with different retentions: the smallest for all and a second mask at a "
            "higher one for agents that can carry it, one of two each, the smallest for all, or each its own",
        )

    def __init__(self, options: Options, setting: Setting) -> None:
        self.options, self.setting, self.masker = options, setting, setting.masker

    def init(self, agents: Agents) -> State:
        lower = self._init(agents, self._keep(agents))
        if not self.nested:
            return lower
        above = self._init(agents, self._keep_above(agents))
        return replace(lower, above=replace(above, able=self._able(agents).to(agents.keep.device)))

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        batch = data.batch(clock)
        lower, loss = self._learn(state, batch, clock)
        if state.above is None or _spared(state.above):
            return lower, loss
        above, higher_loss = self._learn(state.above, batch, clock)
        return replace(lower, above=_for_the_able(above, state.above)), torch.where(_able(above), higher_loss, loss)

    def share(self, state: State) -> Payload:
        assert state.proposal is not None
        if state.above is None:
            return {"mask": state.proposal}
        if _spared(state.above):
            return {"mask": state.proposal, "above": torch.zeros_like(state.proposal)}
        assert state.above.proposal is not None
        return {"mask": state.proposal, "above": state.above.proposal & _able(state.above)[:, None]}

    def opening(self, agents: Agents) -> Payload:
        masks = {"mask": self._opening(agents, self._keep(agents))}
        if self.nested:
            masks["above"] = self._opening(agents, self._keep_above(agents)) & self._able(agents)[:, None]
        return masks

    def mask_counts(self, agents: Agents) -> MaskCounts:
        counts = {"mask": self.masker.counts(self._keep(agents))}
        if self.nested:
            counts["above"] = self.masker.counts(self._keep_above(agents) * self._able(agents)[:, None])
        return counts

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        masks, heard = received["mask"], mixing.links
        if len(self.levels) > 1 and not self.nested:
            heard = self._same_level(state.keep, masks, heard)
        fused = self._fuse(state, masks, heard, mixing.count_dtype)
        if state.above is None or _spared(state.above):
            return fused
        masks = received["above"]
        above = self._fuse(state.above, masks, self._of_the_able(masks, heard), mixing.count_dtype)
        return replace(fused, above=_for_the_able(above, state.above))

    def join(self, state: State, received: Payload, mixing: Mixing) -> State:
        lower = self._join(state, received["mask"], mixing.links, mixing.count_dtype)
        if state.above is None or _spared(state.above):
            return lower
        masks = received["above"]
        above = self._join(state.above, masks, self._of_the_able(masks, mixing.links), mixing.count_dtype)
        return replace(lower, above=_for_the_able(above, state.above))

    def local_model(self, state: State) -> Tensor:
        lower = self.masker.model(state.mask, state.keep)
        if state.above is None or _spared(state.above):
            return lower
        above = self.masker.model(state.above.mask, state.above.keep)
        return torch.where(_able(state.above)[:, None], above, lower)

    def _init(self, agents: Agents, keep: Tensor) -> State:
        device = agents.keep.device
        keep = keep.to(device)
        scores = self.masker.initial_scores(self.options.score_init, agents.ids, self.setting.seed).to(device)
        nobody = torch.zeros(len(scores), dtype=torch.int64, device=device)
        votes = torch.zeros_like(scores, dtype=torch.uint8)
        velocity = first_velocity(scores, self.options.momentum)
        return State(scores, self.masker.mask(scores, keep), votes, nobody, keep, velocity)

    def _learn(self, state: State, batch: Batch, clock: Clock) -> tuple[State, Tensor]:
        """At one level."""
        mask = state.mask if state.proposal is None else state.proposal  # of the batch before
        scores, summed, loss = score_step(
            self.setting, self.options, state.scores, mask, state.keep, state.velocity, batch, clock
        )
        proposal = self._mask(scores, state.votes, state.voters, state.keep)
        velocity = summed if self.options.momentum else None
        return replace(state, scores=scores, velocity=velocity, proposal=proposal), loss

    def _join(self, state: State, masks: Tensor, heard: Links, count_dtype: torch.dtype) -> State:
        """At one level: masks [K, P_w]. All are believed: before it has learned, an agent cannot detect lies."""
        votes, voters = count_votes(heard, masks, count_dtype), heard.degree
        scores = joined(state.scores, votes, voters, 1.0, self.masker.layout)
        mask = self._mask(scores, votes, voters, state.keep)
        return replace(state, scores=scores, mask=mask, votes=votes, voters=voters)

    def _fuse(self, state: State, masks: Tensor, heard: Links, count_dtype: torch.dtype) -> State:
        """At one level: masks [K, P_w]."""
        assert state.proposal is not None
        layout = self.masker.layout
        if self.options.guard:
            heard = believed(state.proposal, masks, heard, layout.sizes, self.options.guard)
        votes, voters = count_votes(heard, masks, count_dtype), heard.voters
        scores = pulled(state.scores, votes, voters, state.proposal, self.options.pull, layout)
        mask = self._mask(scores, votes, voters, state.keep)
        return replace(state, scores=scores, mask=mask, votes=votes, voters=voters, proposal=None)

    def _opening(self, agents: Agents, keep: Tensor) -> Tensor:
        none = torch.zeros(1, self.masker.layout.weights, dtype=torch.uint8)
        begun, init = replace(agents, keep=keep), self.options.score_init
        return opening_masks(begun, self.masker, init, self.setting.seed, lambda _one: none, 0.0)

    @cached_property
    def levels(self) -> tuple[float, ...]:
        return levels_of(self.setting.retentions, self.options.levels)

    @property
    def nested(self) -> bool:
        """Whether agents learn at two levels: all at the lower, those that can carry it at the higher as well."""
        return self.options.levels == "nested" and len(self.levels) > 1

    def _own_levels(self, agents: Agents) -> list[float]:
        """The highest that each can carry."""
        # Rounded as those of all agents are: a float32 may lie just below the level it stands for.
        return [level_of(round(retention, 6), self.levels) for retention in agents.retention.tolist()]

    def _keep(self, agents: Agents) -> Tensor:
        """[A, L]: K_l at each agent's level, or at the one that all have in common."""
        own = [self.levels[0]] * len(agents.ids) if self.nested else self._own_levels(agents)
        return kept_counts(self.masker.layout, own, self.masker.options)

    def _keep_above(self, agents: Agents) -> Tensor:
        """[A, L]: K_l at the higher of two levels, also for agents that cannot carry it."""
        return kept_counts(self.masker.layout, [self.levels[-1]] * len(agents.ids), self.masker.options)

    def _able(self, agents: Agents) -> Tensor:
        """[A]: which agents can carry the higher level."""
        return torch.tensor([level == self.levels[-1] for level in self._own_levels(agents)])

    def _same_level(self, keep: Tensor, masks: Tensor, heard: Links) -> Links:
        """A mask's ones tell at which level it was cut; the nearest, since filters may be emptied."""
        layout = self.masker.layout
        counts = kept_counts(layout, self.levels, self.masker.options).sum(1).to(keep.device)  # [levels]
        theirs = ones_heard(masks, heard, layout.sizes).sum(-1)
        return heard.where(heard.by_receiver(_nearest(keep.sum(1), counts)) == _nearest(theirs, counts))

    def _of_the_able(self, masks: Tensor, heard: Links) -> Links:
        """Agents that cannot carry the level send no ones."""
        return heard.where(ones_heard(masks, heard, self.masker.layout.sizes).any(-1))

    def _mask(self, scores: Tensor, votes: Tensor, voters: Tensor, keep: Tensor) -> Tensor:
        gain = self.options.vote_gain
        return self.masker.select(aggregated_magnitude(scores, votes, voters, gain, self.masker.layout), keep)


def _nearest(ones: Tensor, counts: Tensor) -> Tensor:
    """The level whose count is nearest: [...], [levels] -> [...]."""
    return (ones[..., None] - counts).abs().argmin(-1)


def _able(above: State) -> Tensor:
    assert above.able is not None
    return above.able  # [A]


def _for_the_able(after: State, before: State) -> State:
    """Agents that cannot carry the level stay unchanged: a stack computes all its rows."""
    able = _able(after)
    chosen: dict[str, Any] = {}
    for name in ("scores", "mask", "votes", "voters", "velocity"):
        new, old = getattr(after, name), getattr(before, name)
        if new is not None:
            chosen[name] = torch.where(able if new.dim() == 1 else able[:, None], new, old)
    return replace(after, **chosen)


def _spared(above: State) -> bool:
    """Whether a single agent cannot carry the level, and need not compute it."""
    return len(above.scores) == 1 and not bool(_able(above)[0])
