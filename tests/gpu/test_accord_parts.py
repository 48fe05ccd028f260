"""What accord adds on a GPU, against the same on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from peermask.graph.links import Links
from peermask.masks.aggregation import pull_scores
from peermask.masks.guard import believed_links, distances
from peermask.masks.scores import step_scores
from peermask.models.architectures import alexnet
from peermask.models.layout import find_layout

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LAYOUT = find_layout(alexnet((3, 32, 32), 10))
AGENTS = 20


def normal(seed: int = 0) -> Tensor:
    return torch.randn(AGENTS, LAYOUT.weights, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("relative", [False, True])
def test_a_step(momentum: float, decay: float, relative: bool) -> None:
    scores, gradient, weights = normal(), normal(1), normal(2)[0]
    velocity = normal(3) if momentum else None
    there = step_scores(
        scores.cuda(), gradient.cuda(), weights.cuda(), None if velocity is None else velocity.cuda(), 0.3, momentum,
        decay, 0.0, LAYOUT, relative=relative,
    )  # fmt: skip
    here = step_scores(scores, gradient, weights, velocity, 0.3, momentum, decay, 0.0, LAYOUT, relative=relative)
    for one, other in zip(there, here, strict=True):
        # Sums of layers in another order differ by a few millionths, and the largest directions are 30.
        torch.testing.assert_close(one.cpu(), other, rtol=5e-5 if relative else 1e-5, atol=1e-3 if relative else 1e-6)


def test_a_pull_of_each_agents_own() -> None:
    scores, mask = normal(), normal(1) > 0.5
    votes, voters = (normal(2).abs() * 3).to(torch.uint8), torch.arange(AGENTS)
    gains = torch.rand(AGENTS, generator=torch.Generator().manual_seed(3))
    there = pull_scores(scores.cuda(), votes.cuda(), voters.cuda(), mask.cuda(), gains.cuda(), LAYOUT).cpu()
    torch.testing.assert_close(there, pull_scores(scores, votes, voters, mask, gains, LAYOUT), rtol=1e-4, atol=1e-5)
    assert torch.equal(there[0], scores[0])  # hears nobody


@pytest.mark.parametrize("rows", [slice(None), slice(3, 4)])
def test_the_guard_believes_the_same_neighbours(rows: slice) -> None:
    honest = normal().abs() > 0.7
    honest[5:] = honest[:1] ^ (normal(1)[5:] > 2.0)  # a few entries apart from the first
    received = honest.clone()
    received[::7] = normal(2)[::7] > 0.5
    heard = torch.rand(AGENTS, AGENTS, generator=torch.Generator().manual_seed(3)) < 0.6
    mine, heard = honest[rows], heard[rows]
    here, there = Links.of(heard), Links.of(heard.cuda())
    near = distances(mine, received, here, LAYOUT.sizes)
    far = distances(mine.cuda(), received.cuda(), there, LAYOUT.sizes)
    torch.testing.assert_close(far.cpu()[heard], near, rtol=1e-12, atol=0.0)  # sums in another order
    some = believed_links(mine.cuda(), received.cuda(), there, LAYOUT.sizes, 1.5)
    assert torch.equal(some.pairs.cpu(), believed_links(mine, received, here, LAYOUT.sizes, 1.5).pairs)
    there.is_paired = False  # as where agents are many
    some = believed_links(mine.cuda(), received.cuda(), there, LAYOUT.sizes, 1.5)
    assert torch.equal(some.pairs.cpu(), believed_links(mine, received, here, LAYOUT.sizes, 1.5).pairs)
