"""Kernels on scores and masked models, interpreted on a CPU, against their reference implementations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from peermask.masks.aggregation import fine_tuned, fine_tuned_triton
from peermask.masks.budget import MaskOptions
from peermask.masks.masker import Masker, masked_model_triton
from peermask.masks.scores import score_gradient, score_gradient_triton, stepped, stepped_triton
from peermask.models.layout import Layer, Layout

pytestmark = pytest.mark.usefixtures("interpreted")

SHAPES = [(1, 37), (3, 2048), (2, 5000), (4, 1)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Zeros of either sign are told apart."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.mark.parametrize(("agents", "width"), SHAPES)
@pytest.mark.parametrize("rescaled", [False, True])
def test_the_gradient_of_scores(agents: int, width: int, rescaled: bool) -> None:
    scores = normal(agents, width)
    scores[:, ::5], scores[:, 3::5] = 0.0, -0.0
    gradient = normal(agents, width + 11, seed=1)[:, :width]  # of all parameters: rows lie apart
    weights = normal(agents, width, seed=2) if rescaled else normal(width, seed=2)
    assert same_bits(score_gradient_triton(gradient, weights, scores), score_gradient(gradient, weights, scores))


def test_the_gradient_of_scores_that_lie_apart() -> None:
    gradient, weights, scores = normal(50, 6).T, normal(100)[::2], normal(6, 70, seed=1)[:, :50]
    assert same_bits(score_gradient_triton(gradient, weights, scores), score_gradient(gradient, weights, scores))
    both = normal(1, 50, seed=2).expand(6, -1)
    assert same_bits(score_gradient_triton(gradient, both, scores), score_gradient(gradient, both, scores))


@pytest.mark.parametrize(("agents", "width"), SHAPES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("rescaled", "decay"), [(False, 0.0), (True, 0.01)])
def test_a_step(agents: int, width: int, momentum: float, rescaled: bool, decay: float) -> None:
    scores = normal(agents, width)
    scores[:, ::5] = 0.0
    gradient = normal(agents, width + 11, seed=1)[:, :width]
    weights = normal(agents, width, seed=2) if rescaled else normal(width, seed=2)
    velocity = normal(agents, width, seed=3) if momentum else None
    layout = Layout((Layer("w", "conv", (1, width), 0, 2),), ())
    fast = stepped_triton(scores, gradient, weights, velocity, 0.3, momentum, decay)
    slow = stepped(scores, gradient, weights, velocity, 0.3, momentum, decay, 0.0, layout)[:2]
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("agents", "width"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("lr", [1.0, 0.3, 0.0])
def test_fine_tuning(agents: int, width: int, dtype: torch.dtype, lr: float) -> None:
    scores, gradient = normal(agents, width), normal(agents, width, seed=1)
    voters = torch.arange(agents)  # the first hears nobody
    votes = (torch.rand(agents, width, generator=torch.Generator().manual_seed(2)) * (voters[:, None] + 1)).to(dtype)
    fast, slow = (tune(scores, gradient, votes, voters, lr) for tune in (fine_tuned_triton, fine_tuned))
    # The interpreter rounds twice where a GPU, and torch on most CPUs, rounds once.
    torch.testing.assert_close(fast, slow, rtol=1e-6, atol=1e-7)
    assert lr == 0.3 or torch.equal(fast, slow)


def test_fine_tuning_of_scores_that_lie_apart() -> None:
    scores, gradient, votes = normal(50, 6).T, normal(6, 70)[:, :50], torch.ones(50, 6, dtype=torch.uint8).T
    voters = torch.tensor([0, 1, 2, 3] * 3)[::2]
    assert torch.equal(
        fine_tuned_triton(scores, gradient, votes, voters, 1.0), fine_tuned(scores, gradient, votes, voters, 1.0)
    )


@pytest.mark.parametrize(("agents", "width"), SHAPES)
@pytest.mark.parametrize("rest", [0, 1, 3000])
@pytest.mark.parametrize("rescale", [False, True])
def test_a_masked_model(agents: int, width: int, rest: int, rescale: bool) -> None:
    masked = (Layer("w", "conv", (1, width), 0, 2),)
    layout = Layout(masked, (Layer("b", "bias", (rest,), width, 2),) if rest else ())
    masker = Masker(layout, normal(layout.total), MaskOptions(rescale=rescale))
    mask, keep = normal(agents, width, seed=1) > 0.5, torch.arange(1, agents + 1)[:, None]
    for mine in (mask, mask.T.contiguous().T):
        model = masked_model_triton(mine, masker.weights(keep), masker.frozen)
        assert same_bits(model, masker.model(mask, keep))
