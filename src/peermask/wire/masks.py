"""Whole or as what changed: a mask against the sender's history, the support of values against the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peermask.wire.contexts import Contexts, plan_flips
from peermask.wire.sets import Mask, SetPlan, plan_set, plan_set_within


@dataclass(frozen=True)
class MaskPlan:
    """The smaller of keyframe and delta."""

    is_delta: bool
    members: SetPlan
    sizes: tuple[int, ...]  # of the layers or classes it is cut into


def plan_mask(mask: Mask, layers: Sequence[int], base: Mask | None, contexts: Contexts | None) -> MaskPlan:
    """A mask leaf; `base` is the mask sent last, of which `contexts` tell how likely each bit is to flip."""
    if base is None or contexts is None:
        return MaskPlan(False, plan_set(mask, layers), tuple(layers))
    sizes = tuple(int(contexts.sizes[c]) for c in contexts.used)
    return _smaller(mask, layers, plan_flips(contexts, np.flatnonzero(mask ^ base)), sizes)


def plan_support(where: Mask, layers: Sequence[int], base: Mask | None) -> MaskPlan:
    """Where values are; flips are coded by layer."""
    if base is None:
        return MaskPlan(False, plan_set(where, layers), tuple(layers))
    return _smaller(where, layers, plan_set(where ^ base, layers), tuple(layers))


def _smaller(mask: Mask, layers: Sequence[int], delta: SetPlan, sizes: tuple[int, ...]) -> MaskPlan:
    """On a tie the keyframe."""
    keyframe = plan_set_within(mask, layers, delta.size)
    return MaskPlan(True, delta, sizes) if keyframe is None else MaskPlan(False, keyframe, tuple(layers))


def support(values: NDArray[np.float32]) -> Mask:
    """Where a value is not +0.0; -0.0 counts, or its sign would be lost."""
    where: Mask = values.view(np.uint32) != 0
    return where  # [P]
