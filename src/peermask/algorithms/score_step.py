"""The shared parts of methods that learn a mask: the opening, and one private step on the scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from peermask import registry
from peermask.algorithms.contract import Agents, Clock, Setting
from peermask.algorithms.descent import Schedule, learning_rate
from peermask.compute.network import Batch
from peermask.masks.masker import Masker
from peermask.masks.scores import ScoreInit, keep_sign, stepped

# One private step on the scores, as every method that learns a mask takes it.
#
# G  = ∂f/∂v ⊙ w ⊙ sign(z)            Paper Eq. (15)
# u  ← β u + G                        momentum; u = G where it is off
# z½ = z − η (û + ω z + λ ∂R/∂z)      Eq. (4), (14)
#
# û is u itself (`step = "absolute"`, as in the paper), or u in units of the scores (`step = "relative"`): of each layer
# û_l = u_l mean|z_l| / rms(u_l). Gradients differ by orders of magnitude between layers, networks and frozen weights;
# in units of the scores one step size fits all of them.

LARGEST, TRAVEL = 0.1, 8.0  # of `lr = "auto"`: the largest step, and the sum of all steps without a schedule

Lr = Annotated[float, Field(gt=0)] | Literal["auto"]


class ScoreOptions(registry.Options):
    """What every method that learns a mask has in common."""

    lr: Lr = Field(1.0, description="η, step size of the scores; auto, of relative steps: min(0.1, 8 / batches)")
    step: Literal["absolute", "relative"] = Field(
        "absolute", description="follow the gradient itself, or in each layer its direction in units of the scores"
    )
    schedule: Schedule = Field("constant", description="how η changes over the run")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="ω, on the scores, only in learn")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="β, how much of the last round's G is kept")
    group_lasso: Annotated[float, Field(ge=0)] = Field(0.0, description="λ of the group lasso on the scores")
    score_init: ScoreInit = Field(
        "shared", description="the first scores: one draw for all agents (|w| of given weights), or one each"
    )
    keep_sign: bool = Field(False, description="stop a score at zero instead of letting a step carry it across")

    @model_validator(mode="after")
    def _auto_is_relative(self) -> ScoreOptions:
        if self.lr == "auto" and self.step == "absolute":
            raise ValueError("lr = 'auto' is for step = 'relative'; give a number")
        return self

    def first_lr(self, clock: Clock) -> float:
        """η before the schedule."""
        return min(LARGEST, TRAVEL / (clock.rounds * clock.batches)) if self.lr == "auto" else self.lr

    def scheduled_lr(self, clock: Clock) -> float | Tensor:
        """η of a round."""
        return learning_rate(self.first_lr(clock), self.schedule, clock)


@dataclass(frozen=True)
class Step:
    """What a step leads to."""

    scores: Tensor  # [A, P_w] z½
    summed: Tensor  # [A, P_w] u
    direction: Tensor  # [A, P_w] û
    loss: Tensor  # [A]


def score_step(
    setting: Setting,
    options: ScoreOptions,
    lr: float | Tensor,
    scores: Tensor,
    mask: Tensor,
    keep: Tensor,
    velocity: Tensor | None,
    batch: Batch,
) -> Step:
    """A step by the loss of the model w ⊙ m on one batch."""
    masker = setting.masker
    model_gradient, loss = setting.network.gradient(masker.model(mask, keep), batch)
    moved, summed, direction = stepped(
        scores,
        model_gradient[:, : masker.layout.weights],
        masker.weights(keep),
        velocity,
        lr,
        options.momentum,
        options.weight_decay,
        options.group_lasso,
        masker.layout,
        relative=options.step == "relative",
    )
    return Step(keep_sign(moved, scores) if options.keep_sign else moved, summed, direction, loss)


# Openings: a first mask of each agent that every other can compute, so that even its first message is a delta.
#
# Close to the mask of an agent that has not learned yet, Thres(|z| + γ mean|z| n), but in whole numbers: every machine
# must find the same, and floats added up in another order would not.

SCORE_BITS = 24  # a score is a multiple of 2^-24
GAIN_BITS = 16


def opening_masks(
    agents: Agents, masker: Masker, init: ScoreInit, seed: int, votes: Callable[[Agents], Tensor], gain: float
) -> Tensor:
    """[A, P_w]; `votes` gives an agent's first n as 0 or 1, [1, P_w]. Agents that begin alike are worked out once."""
    known: dict[object, Tensor] = {}
    rows = []
    for i, agent in enumerate(agents.ids):
        one = agents.rows(slice(i, i + 1))
        alike = (agent if init == "independent" else None, tuple(one.keep[0].tolist()), float(one.retention[0]))
        if alike not in known:
            scores = masker.initial_scores(init, one.ids, seed)[0].numpy()
            known[alike] = opening_mask(scores, votes(one)[0].numpy(), gain, one.keep[0].tolist(), masker.layout.sizes)
        rows.append(known[alike])
    return torch.stack(rows)


def opening_mask(
    scores: NDArray[np.float32], votes: NDArray[np.uint8], gain: float, keep: list[int], sizes: tuple[int, ...]
) -> Tensor:
    """The `keep` largest of each layer, [P_w]; on a tie the first."""
    whole = (np.abs(scores) * np.float32(2**SCORE_BITS)).astype(np.int64)
    mask = np.zeros(len(whole), np.bool_)
    start = 0
    for size, kept in zip(sizes, keep, strict=True):
        part = slice(start, start + size)
        start += size
        mean = int(whole[part].sum()) // size
        raised = whole[part] + (mean * round(gain * 2**GAIN_BITS) >> GAIN_BITS) * votes[part].astype(np.int64)
        limit = np.partition(raised, size - kept)[size - kept] if kept else raised.max() + 1
        mask[part] = raised > limit
        ties = np.flatnonzero(raised == limit)[: kept - int(np.count_nonzero(mask[part]))]
        mask[part.start + ties] = True
    return torch.from_numpy(mask)
