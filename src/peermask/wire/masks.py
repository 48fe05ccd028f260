"""A mask leaf: a keyframe (the whole mask) or a delta (its flips against an older mask the receiver has)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peermask.wire.sets import Mask, SetPlan, plan_set, plan_set_within


@dataclass(frozen=True)
class MaskPlan:
    """The smaller of keyframe and delta."""

    is_delta: bool
    members: SetPlan


def plan_mask(mask: Mask, layers: Sequence[int], base: Mask | None) -> MaskPlan:
    """On a tie the keyframe, which needs nothing of the receiver."""
    if base is None:
        return MaskPlan(False, plan_set(mask, layers))
    delta = plan_set(mask ^ base, layers)
    keyframe = plan_set_within(mask, layers, delta.size)
    return MaskPlan(True, delta) if keyframe is None else MaskPlan(False, keyframe)


def support(values: NDArray[np.float32]) -> Mask:
    """Where a value is not +0.0; -0.0 counts, or its sign would be lost."""
    where: Mask = values.view(np.uint32) != 0
    return where  # [P]
