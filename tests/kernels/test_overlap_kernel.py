"""The kernel that compares masks, interpreted on a CPU, against plain counting."""

from __future__ import annotations

import pytest
import torch

from peermask.kernels.overlap import overlaps_triton

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.parametrize(("agents", "senders"), [(1, 5), (20, 20), (33, 40)])
@pytest.mark.parametrize("sizes", [(37,), (1500, 37), (1024, 5, 2048)])
def test_overlaps_and_ones(agents: int, senders: int, sizes: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(agents)
    mine = torch.rand(agents, sum(sizes), generator=generator) < 0.3
    theirs = torch.rand(senders, sum(sizes), generator=generator) < 0.6
    both, ones = overlaps_triton(mine, theirs, sizes)
    assert torch.equal(both.long(), mine.long() @ theirs.long().T)
    assert torch.equal(ones.long(), torch.stack([layer.sum(1) for layer in theirs.split(list(sizes), 1)], 1))
