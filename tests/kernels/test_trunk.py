"""The convolution kernels, interpreted on a CPU, against torch's own operations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from peermask.compute.conv_block import Activation, ConvBlock, fills_tiles, shapes_of
from peermask.compute.conv_trunk import run_trunk
from trunk_reference import apart, from_reference

pytestmark = pytest.mark.usefixtures("interpreted")

NORMED = (ConvBlock(1, "elu", 5e-6, 3, 2, 0), ConvBlock(1, "elu", 2.5e-2, 3, 2, 1))
PLAIN = (ConvBlock(2, "relu", None, 2, 2, 0), ConvBlock(1, "none", None, 2, 1, 1))


@pytest.mark.parametrize("blocks", [NORMED, PLAIN])
@pytest.mark.parametrize("channels", [3, pytest.param(1, marks=pytest.mark.long), 32])
@pytest.mark.parametrize("pooling", [True, False])
def test_a_trunk_equals_its_reference(blocks: tuple[ConvBlock, ...], channels: int, pooling: bool) -> None:
    torch.manual_seed(0)
    if not pooling:  # without windows in which rounding may choose another entry, gradients agree far better
        blocks = tuple(replace(block, pool=1, pool_stride=1, pool_padding=0) for block in blocks)
    x = torch.randn(2, 3, channels, 7, 7).permute(0, 1, 3, 4, 2)
    weights = [torch.randn(2, 32, channels, 3, 3) / (3 * channels**0.5), torch.randn(2, 64, 32, 3, 3) / 17]
    biases = [None, torch.randn(2, 64)]
    result, *gradients = from_reference(blocks, x, weights, biases)
    assert result < 0.001
    assert max(gradients) < (0.15 if pooling or blocks[0].activation == "relu" else 0.001)  # relu chooses, too


@pytest.mark.parametrize("size", [1e-8, 1e8])
@pytest.mark.parametrize("activation", ["none", "elu"])
def test_numbers_outside_the_range_of_halves_are_carried_into_it(size: float, activation: Activation) -> None:
    torch.manual_seed(0)
    block = ConvBlock(1, activation, None, 1, 1, 0)
    x = size * torch.randn(1, 2, 1, 5, 5).permute(0, 1, 3, 4, 2)
    weights: list[Tensor] = [torch.randn(1, 32, 1, 3, 3) / size**2, torch.randn(1, 32, 32, 3, 3) * size**2]
    assert max(from_reference((block, block), x, weights, [None, None])) < 0.002


def test_batches_that_fill_tiles_take_one_pixel_after_another() -> None:
    torch.manual_seed(0)
    block = ConvBlock(1, "elu", None, 1, 1, 0)
    x = torch.randn(1, 120, 1, 3, 3).permute(0, 1, 3, 4, 2)
    weights: list[Tensor] = [torch.randn(1, 32, 1, 3, 3), torch.randn(1, 32, 32, 5, 5) / 17]
    assert fills_tiles(120, 128)
    assert max(from_reference((block, replace(block, padding=2)), x, weights, [None, None])) < 0.002


def test_an_agent_that_keeps_nothing_of_a_layer_gets_zeros() -> None:
    x = torch.randn(1, 2, 1, 5, 5).permute(0, 1, 3, 4, 2)
    shapes = shapes_of(NORMED[:1], 5, 5, [(32, 1, 3, 3)])
    w = torch.zeros(1, 32, 1, 3, 3, requires_grad=True)
    y = run_trunk(shapes, x, [w], [None])
    assert not y.any()
    assert not torch.autograd.grad(y.sum(), w)[0].isnan().any()


def test_a_pixel_that_every_window_chose_gets_all_their_gradients() -> None:
    """The largest gradient that can come back for its size, so that a bound too small would overflow."""
    block = ConvBlock(1, "none", None, 3, 1, 1)
    x = torch.zeros(1, 1, 5, 5, 1)
    x[0, 0, 2, 2] = 1
    w = torch.zeros(1, 32, 1, 3, 3)
    w[..., 1, 1] = 1
    results = []
    for compute in (lambda leaf: run_trunk(shapes_of([block], 5, 5, [(32, 1, 3, 3)]), x, [leaf], [None]), None):
        leaf = w.clone().requires_grad_()
        y = block(x, leaf, None) if compute is None else compute(leaf)
        results.append(torch.autograd.grad(y, leaf, torch.full_like(y, 1.9))[0])
    assert apart(*results) < 0.001
    assert float(results[1][0, 0, 0, 1, 1]) == pytest.approx(9 * 1.9)


@pytest.mark.parametrize("size", [1e-16, 1e16])
def test_two_small_or_large_factors_have_a_product(size: float) -> None:
    torch.manual_seed(0)
    block, w = ConvBlock(1, "none", None, 1, 1, 0), torch.randn(1, 32, 1, 3, 3, requires_grad=True)
    x = size * torch.randn(1, 2, 5, 5, 1)
    sent = size * torch.randn(1, 2, 5, 5, 32)
    own = run_trunk(shapes_of([block], 5, 5, [w.shape[1:]]), x, [w], [None])
    gradients = [torch.autograd.grad(y, w, sent)[0].double() for y in (own, block(x, w, None))]
    assert apart(*gradients) < 0.001


def test_an_agent_is_computed_alike_in_any_chunk() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2, 1, 7, 7).permute(0, 1, 3, 4, 2) * torch.tensor([1.0, 1e3, 1e-4]).view(3, 1, 1, 1, 1)
    weights = [torch.randn(3, 32, 1, 3, 3), torch.randn(3, 64, 32, 3, 3)]
    biases = [torch.randn(3, 32), torch.randn(3, 64)]
    shapes = shapes_of(NORMED, 7, 7, [w.shape[1:] for w in weights])

    def computed(rows: slice) -> list[Tensor]:
        leaves = [leaf[rows].clone().requires_grad_() for leaf in (*weights, *biases)]
        y = run_trunk(shapes, x[rows], leaves[:2], leaves[2:])
        return [y, *torch.autograd.grad(y.sum(), leaves)]

    for together, alone in zip(computed(slice(0, 3)), computed(slice(1, 2)), strict=True):
        assert torch.equal(together[1:2], alone)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, which computes here, remarks on every NaN
@pytest.mark.parametrize("activation", ["none", "elu", "relu"])
@pytest.mark.parametrize("wrong", [float("nan"), 1e38])
def test_numbers_that_are_none_are_not_lost(activation: Activation, wrong: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 5, 5, 1)
    weights = [torch.randn(1, 32, 1, 3, 3) * wrong, 100 * torch.randn(1, 32, 32, 3, 3)]
    block = ConvBlock(1, activation, None, 3, 2, 1)
    y = run_trunk(shapes_of((block, block), 5, 5, [w.shape[1:] for w in weights]), x, weights, [None, None])
    assert not torch.isfinite(y).all()
