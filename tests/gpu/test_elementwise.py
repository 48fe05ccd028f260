"""Kernels that go over all weights once, against their reference implementations, where there is a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from peermask.graph.links import Links
from peermask.graph.sums import count_by_rows, count_votes
from peermask.masks.aggregation import aggregated_magnitude, agreement, fine_tuned
from peermask.masks.budget import MaskOptions
from peermask.masks.masker import Masker
from peermask.masks.scores import score_gradient
from peermask.models.architectures import alexnet
from peermask.models.layout import Layer, Layout, find_layout

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SHAPES = [(1, 37), (3, 2048), (20, 100_003), (20, 1_227_328)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Zeros of either sign are told apart."""
    return torch.equal(one.cpu().view(torch.int32), other.cpu().view(torch.int32))


@pytest.mark.parametrize(
    ("agents", "senders", "width"), [(1, 1, 37), (20, 20, 100_003), (20, 20, 1_227_328), (33, 70, 5_000), (3, 2100, 64)]
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_votes_are_counted(agents: int, senders: int, width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    chosen = torch.rand(agents, senders, generator=generator) < min(0.5, 200 / senders)
    votes = torch.rand(senders, width, generator=generator) < 0.3
    counted = count_votes(Links.of(chosen.cuda()), votes.cuda(), dtype)
    assert torch.equal(counted.cpu(), count_by_rows(Links.of(chosen), votes, dtype))


def test_votes_that_lie_apart_are_counted() -> None:
    chosen, votes = normal(6, 9).cuda() > 0, normal(9, 600).cuda() > 0
    parts = [
        (chosen[::2], votes[:, :300]),
        (chosen, votes[:, 1:301]),
        (chosen[:, ::3], votes[::3, ::2]),
        (chosen[:, :4], votes[:1].expand(4, -1)),
    ]
    for some, said in parts:
        assert torch.equal(
            count_votes(Links.of(some), said, torch.uint8).cpu(),
            count_by_rows(Links.of(some.cpu()), said.cpu(), torch.uint8),
        )


def test_more_weights_than_32_bits_can_number() -> None:
    """Of the last of many agents: what lies past 2³¹ entries is read and written where it should be."""
    agents, width = 2200, 1_000_000
    votes = torch.zeros(agents, width, dtype=torch.bool, device="cuda")
    votes[-1, -3:] = True
    chosen = torch.zeros(agents, agents, dtype=torch.bool, device="cuda")
    chosen[-1, -1] = chosen[0, -1] = True
    counted = count_votes(Links.of(chosen), votes, torch.uint8)
    assert counted.sum(dtype=torch.int64) == 6
    assert counted[-1, -3:].tolist() == counted[0, -3:].tolist() == [1, 1, 1]


@pytest.mark.parametrize(("agents", "width"), SHAPES)
@pytest.mark.parametrize("rescaled", [False, True])
def test_the_gradient_of_scores(agents: int, width: int, rescaled: bool) -> None:
    scores = normal(agents, width)
    scores[:, ::5], scores[:, 3::5] = 0.0, -0.0
    gradient = normal(agents, width + 11, seed=1)
    weights = normal(agents, width, seed=2) if rescaled else normal(width, seed=2)
    there = score_gradient(gradient.cuda()[:, :width], weights.cuda(), scores.cuda())
    assert same_bits(there, score_gradient(gradient[:, :width], weights, scores))


@pytest.mark.parametrize(("agents", "width"), SHAPES)
@pytest.mark.parametrize("lr", [1.0, 0.3])
def test_fine_tuning(agents: int, width: int, lr: float) -> None:
    """As torch computes it on the same device, bit for bit."""
    scores, gradient = normal(agents, width).cuda(), normal(agents, width, seed=1).cuda()
    voters = torch.arange(agents, device="cuda")  # the first hears nobody
    votes = (torch.rand(agents, width, device="cuda") * (voters[:, None] + 1)).to(torch.uint8)
    eager = torch.sub(scores, agreement(votes, voters).mul_(gradient), alpha=lr)
    assert same_bits(fine_tuned(scores, gradient, votes, voters, lr), eager)


@pytest.mark.parametrize(("agents", "width"), SHAPES)
@pytest.mark.parametrize("rest", [0, 1, 3000])
def test_a_masked_model(agents: int, width: int, rest: int) -> None:
    masked = (Layer("w", "conv", (1, width), 0, 2),)
    layout = Layout(masked, (Layer("b", "bias", (rest,), width, 2),) if rest else ())
    frozen, mask = normal(layout.total), normal(agents, width, seed=1) > 0.5
    keep = torch.ones(agents, 1, dtype=torch.int64)
    there = Masker(layout, frozen.cuda(), MaskOptions()).model(mask.cuda(), keep.cuda())
    assert same_bits(there, Masker(layout, frozen, MaskOptions()).model(mask, keep))


def test_a_rescaled_masked_model() -> None:
    layout = Layout((Layer("w", "conv", (1, 5000), 0, 2),), (Layer("b", "bias", (7,), 5000, 2),))
    masker = Masker(layout, normal(layout.total).cuda(), MaskOptions(rescale=True))
    mask, keep = normal(3, 5000, seed=1).cuda() > 0.5, torch.tensor([[1], [20], [300]], device="cuda")
    model = masker.model(mask, keep)
    assert torch.equal(model[:, :5000], mask * masker.weights(keep))
    assert torch.equal(model[:, 5000:], masker.frozen[5000:].expand(3, -1))


def test_an_agents_magnitude_does_not_depend_on_the_chunk() -> None:
    layout = find_layout(alexnet((3, 32, 32), 10))
    scores = normal(5, layout.weights).cuda()
    votes, voters = (scores > 0).to(torch.uint8), torch.ones(5, dtype=torch.int64, device="cuda")
    every = aggregated_magnitude(scores, votes, voters, 1.0, layout)
    for rows in (slice(0, 1), slice(1, 5)):
        assert torch.equal(aggregated_magnitude(scores[rows], votes[rows], voters[rows], 1.0, layout), every[rows])
