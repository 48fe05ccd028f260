"""What two masks have in common, next to chance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from theory_cases import kernel, some_target

from peermask.paper.theory.construct import construct_masks
from peermask.paper.theory.measures import overlap
from peermask.paper.theory.networks import Masks, RandomNet, draw


def masks_of(*kept: int) -> Masks:
    first = torch.zeros(4, dtype=torch.bool)
    first[list(kept)] = True
    return first.reshape(4, 1, 1, 1), first.reshape(1, 4, 1, 1)


def test_counts_worked_by_hand() -> None:
    net = RandomNet((kernel(0.5, 0.5, 0.5, -0.5), torch.ones(1, 4, 1, 1).double()), 4)
    common = overlap(net, masks_of(0, 1), masks_of(1, 2))
    assert (common.entries, common.usable, common.kept1, common.kept2, common.both) == (4, 3, 2, 2, 1)
    assert common.chance == pytest.approx(4 / 3)  # two blind picks of 2 out of 3
    assert common.spread**2 == pytest.approx(2 / 9)  # overlap is 1 with 2/3, 2 with 1/3
    assert common.chance_anywhere == 1
    assert common.jaccard == pytest.approx(1 / 3)
    assert common.sigmas == pytest.approx(-(1 / 3) / np.sqrt(2 / 9))


def test_a_mask_has_everything_in_common_with_itself() -> None:
    target = some_target(1)
    net = draw(target, 8, 0)
    (masks,) = construct_masks(net, [target])
    common = overlap(net, masks, masks)
    assert common.both == common.kept1 == common.kept2
    assert common.jaccard == 1
    assert common.sigmas > 0


def test_empty_masks() -> None:
    net = RandomNet((kernel(-0.5, -0.5, -0.5, -0.5), torch.ones(1, 4, 1, 1).double()), 4)
    common = overlap(net, masks_of(), masks_of())
    assert (common.jaccard, common.sigmas, common.chance) == (1, 0, 0)
