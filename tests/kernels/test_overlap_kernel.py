"""The kernels that compare masks, on every device, against plain counting and the guard's own rule."""

from __future__ import annotations

import pytest
import torch

from peermask.graph.links import Links
from peermask.masks.guard import HALFWAY, believed_links, believed_links_triton, distances, overlaps_triton


@pytest.mark.parametrize(("agents", "senders"), [(1, 5), (20, 20), (33, 40)])
@pytest.mark.parametrize("sizes", [(37,), (1500, 37), (1024, 5, 2048)])
def test_overlaps_and_ones(device: torch.device, agents: int, senders: int, sizes: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(agents)
    mine = torch.rand(agents, sum(sizes), generator=generator) < 0.3
    theirs = torch.rand(senders, sum(sizes), generator=generator) < 0.6
    both, own, ones = (counts.cpu() for counts in overlaps_triton(mine.to(device), theirs.to(device), sizes))
    assert torch.equal(both.long(), mine.long() @ theirs.long().T)
    for masks, counted in ((mine, own), (theirs, ones)):
        assert torch.equal(counted.long(), torch.stack([layer.sum(1) for layer in masks.split(list(sizes), 1)], 1))


@pytest.mark.parametrize(("agents", "senders"), [(1, 1), (4, 6), (7, 20)])
def test_the_same_neighbours_are_believed(device: torch.device, agents: int, senders: int) -> None:
    sizes = (700, 60)
    generator = torch.Generator().manual_seed(senders)
    common = torch.rand(1, sum(sizes), generator=generator) < 0.4
    received = common ^ (torch.rand(senders, sum(sizes), generator=generator) < torch.rand(senders, 1) * 0.2)
    received[::3] = torch.rand(received[::3].shape, generator=generator) < 0.4
    mine = common ^ (torch.rand(agents, sum(sizes), generator=generator) < 0.05)
    heard = torch.rand(agents, senders, generator=generator) < 0.7
    fast = believed_links_triton(mine.to(device), received.to(device), heard.to(device), sizes, 1.5, HALFWAY).cpu()
    assert torch.equal(fast, believed_links(mine, received, Links.of(heard), sizes, 1.5).pairs)
    listed, paired = Links.of(heard), Links.of(heard.to(device))
    paired.is_paired = True  # where one program cannot rank all senders
    there = distances(mine.to(device), received.to(device), paired, sizes)
    torch.testing.assert_close(there.cpu()[heard], distances(mine, received, listed, sizes), rtol=1e-12, atol=0.0)
