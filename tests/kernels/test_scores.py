"""Kernels on scores and masked models, on every device, against their reference implementations on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from peermask.masks.aggregation import agreement, fine_tune, fine_tune_triton
from peermask.masks.masker import Masker, MaskOptions, masked_model_triton
from peermask.masks.scores import (
    relative_step_triton,
    score_gradient,
    score_gradient_triton,
    step_scores,
    step_scores_triton,
)
from peermask.models.layout import Layer, Layout

LARGE = [pytest.param(20, width, marks=pytest.mark.large) for width in (100_003, 1_227_328)]
SHAPES = [(1, 37), (3, 2048), (2, 5000), (4, 1), *LARGE]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Zeros of either sign are told apart."""
    return torch.equal(one.cpu().view(torch.int32), other.cpu().view(torch.int32))


@pytest.mark.parametrize(("agents", "width"), SHAPES)
@pytest.mark.parametrize("rescaled", [False, True])
def test_the_gradient_of_scores(device: torch.device, agents: int, width: int, rescaled: bool) -> None:
    scores = normal(agents, width)
    scores[:, ::5], scores[:, 3::5] = 0.0, -0.0
    gradient = normal(agents, width + 11, seed=1).to(device)[:, :width]  # of all parameters: rows lie apart
    weights = normal(agents, width, seed=2) if rescaled else normal(width, seed=2)
    there = score_gradient_triton(gradient, weights.to(device), scores.to(device))
    assert same_bits(there, score_gradient(gradient.cpu(), weights, scores))


def test_the_gradient_of_scores_that_lie_apart(device: torch.device) -> None:
    gradient, scores = normal(50, 6).to(device).T, normal(6, 70, seed=1).to(device)[:, :50]
    for weights in (normal(100).to(device)[::2], normal(1, 50, seed=2).to(device).expand(6, -1)):
        here = score_gradient(gradient.cpu(), weights.cpu(), scores.cpu())
        assert same_bits(score_gradient_triton(gradient, weights, scores), here)


@pytest.mark.parametrize(("agents", "width"), SHAPES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("rescaled", "decay"), [(False, 0.0), (True, 0.01)])
def test_a_step(device: torch.device, agents: int, width: int, momentum: float, rescaled: bool, decay: float) -> None:
    scores = normal(agents, width)
    scores[:, ::5] = 0.0
    gradient = normal(agents, width + 11, seed=1)[:, :width]
    weights = normal(agents, width, seed=2) if rescaled else normal(width, seed=2)
    velocity = normal(agents, width, seed=3) if momentum else None
    layout = Layout((Layer("w", "conv", (1, width), 0, 2),), ())
    last = None if velocity is None else velocity.to(device)
    fast = step_scores_triton(scores.to(device), gradient.to(device), weights.to(device), last, 0.3, momentum, decay)
    slow = step_scores(scores, gradient, weights, velocity, 0.3, momentum, decay, 0.0, layout)[:2]
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one if one is None else one.cpu(), other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sizes", [(37,), (4096, 4097, 5)])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("rescaled", "decay"), [(False, 0.0), (True, 0.01)])
def test_a_step_in_units_of_the_scores(
    device: torch.device, sizes: tuple[int, ...], momentum: float, rescaled: bool, decay: float
) -> None:
    agents, width, starts = 3, sum(sizes), [sum(sizes[:at]) for at in range(len(sizes))]
    layout = Layout(tuple(Layer(str(at), "conv", (1, n), at, 2) for at, n in zip(starts, sizes, strict=True)), ())
    scores, gradient = normal(agents, width), normal(agents, width + 11, seed=1)[:, :width]
    scores[:, ::5] = 0.0
    gradient[2] = 0.0  # an agent that has nothing to learn stays where it is
    weights = normal(agents, width, seed=2) if rescaled else normal(width, seed=2)
    velocity = normal(agents, width, seed=3) * (torch.arange(agents) < 2)[:, None] if momentum else None
    last = None if velocity is None else velocity.to(device)
    there = scores.to(device), gradient.to(device), weights.to(device)
    fast = relative_step_triton(*there, last, 0.3, momentum, decay, sizes)
    slow = step_scores(scores, gradient, weights, velocity, 0.3, momentum, decay, 0.0, layout, relative=True)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-6)
    assert torch.equal(fast[2][2].cpu(), torch.zeros(width))
    one_of = [each[:1] if each.dim() > 1 else each for each in there]
    first = None if last is None else last[:1]
    part = relative_step_triton(one_of[0], one_of[1], one_of[2], first, 0.3, momentum, decay, sizes)
    assert all(same_bits(one, every[:1]) for one, every in zip(part, fast, strict=True))  # however agents are chunked


@pytest.mark.parametrize(("agents", "width"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("lr", [1.0, 0.3, 0.0])
def test_fine_tuning(device: torch.device, agents: int, width: int, dtype: torch.dtype, lr: float) -> None:
    """As torch computes it on the same device."""
    scores, gradient = normal(agents, width).to(device), normal(agents, width, seed=1).to(device)
    voters = torch.arange(agents)  # the first hears nobody
    votes = (torch.rand(agents, width, generator=torch.Generator().manual_seed(2)) * (voters[:, None] + 1)).to(dtype)
    votes, voters = votes.to(device), voters.to(device)
    fast = fine_tune_triton(scores, gradient, votes, voters, lr)
    slow = torch.sub(scores, agreement(votes, voters).mul_(gradient), alpha=lr)
    # The interpreter rounds twice where a GPU, and torch on most CPUs, rounds once.
    torch.testing.assert_close(fast, slow, rtol=1e-6, atol=1e-7)
    assert same_bits(fast, slow) or (lr == 0.3 and device.type == "cpu")


def test_fine_tuning_of_scores_that_lie_apart(device: torch.device) -> None:
    scores, gradient = normal(50, 6).to(device).T, normal(6, 70).to(device)[:, :50]
    votes, voters = torch.ones(50, 6, dtype=torch.uint8, device=device).T, torch.arange(12, device=device)[::2] % 4
    slow = fine_tune(scores.cpu(), gradient.cpu(), votes.cpu(), voters.cpu(), 1.0)
    assert torch.equal(fine_tune_triton(scores, gradient, votes, voters, 1.0).cpu(), slow)


@pytest.mark.parametrize(("agents", "width"), SHAPES)
@pytest.mark.parametrize("rest", [0, 1, 3000])
@pytest.mark.parametrize("rescale", [False, True])
def test_a_masked_model(device: torch.device, agents: int, width: int, rest: int, rescale: bool) -> None:
    masked = (Layer("w", "conv", (1, width), 0, 2),)
    layout = Layout(masked, (Layer("b", "bias", (rest,), width, 2),) if rest else ())
    masker = Masker(layout, normal(layout.total), MaskOptions(rescale=rescale))
    mask, keep = normal(agents, width, seed=1) > 0.5, torch.arange(1, agents + 1)[:, None]
    for mine in (mask.to(device), mask.to(device).T.contiguous().T):
        model = masked_model_triton(mine, masker.weights(keep).to(device), masker.frozen.to(device))
        assert same_bits(model, masker.model(mask, keep))
