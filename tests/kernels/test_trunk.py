"""The convolution kernels, interpreted on a CPU, against torch's own operations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from peermask.kernels.conv_block import ConvBlock
from peermask.kernels.conv_shape import shapes_of, trunk_fits
from peermask.kernels.conv_trunk import run_trunk

pytestmark = pytest.mark.usefixtures("interpreted")

NORMED = (ConvBlock(1, "elu", 5e-6, 3, 2, 0), ConvBlock(1, "elu", 2.5e-2, 3, 2, 1))
PLAIN = (ConvBlock(2, "relu", None, 2, 2, 0), ConvBlock(1, "none", None, 2, 1, 1))


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().norm() / b.detach().norm())


def compare(
    blocks: tuple[ConvBlock, ...], x: Tensor, weights: list[Tensor], biases: list[Tensor | None]
) -> list[float]:
    """How far result and gradients lie from the twin's."""
    shapes = shapes_of(blocks, *x.shape[2:4], [w.shape[1:] for w in weights])
    assert trunk_fits(shapes, x.shape[1])
    results = []
    for fused in (True, False):
        leaves = [None if leaf is None else leaf.clone().requires_grad_() for leaf in (*weights, *biases)]
        if fused:
            y = run_trunk(shapes, x, leaves[: len(blocks)], leaves[len(blocks) :])  # type: ignore[arg-type]
        else:
            y = x
            for block, w, bias in zip(blocks, leaves[: len(blocks)], leaves[len(blocks) :], strict=True):
                assert w is not None
                y = block(y, w, bias)
        sent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        results.append([y, *torch.autograd.grad(y, [leaf for leaf in leaves if leaf is not None], sent)])
    return [apart(own, twin) for own, twin in zip(*results, strict=True)]


@pytest.mark.parametrize("blocks", [NORMED, PLAIN])
@pytest.mark.parametrize("channels", [3, 1, 32])
@pytest.mark.parametrize("pooling", [True, False])
def test_a_trunk_is_its_twin(blocks: tuple[ConvBlock, ...], channels: int, pooling: bool) -> None:
    torch.manual_seed(0)
    if not pooling:  # without windows in which rounding may choose another entry, gradients agree far better
        blocks = tuple(replace(block, pool=1, pool_stride=1, pool_padding=0) for block in blocks)
    x = torch.randn(2, 3, channels, 7, 7).permute(0, 1, 3, 4, 2)
    weights = [torch.randn(2, 32, channels, 3, 3) / (3 * channels**0.5), torch.randn(2, 64, 32, 3, 3) / 17]
    biases = [None, torch.randn(2, 64)]
    result, *gradients = compare(blocks, x, weights, biases)
    assert result < 0.001
    assert max(gradients) < (0.1 if pooling or blocks[0].activation == "relu" else 0.001)  # relu chooses, too


@pytest.mark.parametrize("size", [1e-8, 1e8])
def test_numbers_outside_the_range_of_halves_are_carried_into_it(size: float) -> None:
    torch.manual_seed(0)
    block = ConvBlock(1, "none", None, 1, 1, 0)
    x = size * torch.randn(1, 2, 1, 5, 5).permute(0, 1, 3, 4, 2)
    weights: list[Tensor] = [torch.randn(1, 32, 1, 3, 3) / size**2, torch.randn(1, 32, 32, 3, 3) * size**2]
    assert max(compare((block, block), x, weights, [None, None])) < 0.002


def test_an_agent_that_keeps_nothing_of_a_layer_gets_zeros() -> None:
    x = torch.randn(1, 2, 1, 5, 5).permute(0, 1, 3, 4, 2)
    shapes = shapes_of(NORMED[:1], 5, 5, [(32, 1, 3, 3)])
    w = torch.zeros(1, 32, 1, 3, 3, requires_grad=True)
    y = run_trunk(shapes, x, [w], [None])
    assert not y.any()
    assert not torch.autograd.grad(y.sum(), w)[0].isnan().any()
