"""The convolution in fewer products against torch's own, which is its slow reference."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from peermask.compute.winograd import HEIGHTS, matrices, winograd, winograd_pays

Case = tuple[int, int, int, tuple[int, int], tuple[int, int]]  # images, channels in and out, pixels, padding
# A float rounds to 6e-8; transforms of seven rows multiply that by some hundred, and more without AVX-512.
ROUNDING = 2e-5
CASES: list[Case] = [
    (2, 32, 64, (14, 14), (2, 2)),
    (3, 16, 48, (12, 12), (0, 0)),  # whole tiles
    (1, 1, 1, (5, 5), (0, 0)),  # one output
    (2, 3, 5, (7, 18), (4, 1)),  # unequal axes; the widest padding
    (2, 4, 4, (1, 2), (2, 2)),  # an image smaller than the filter
    (67, 2, 3, (6, 9), (1, 2)),  # many images
    (2, 4, 8, (28, 10), (2, 0)),  # four tiles of seven rows
    (2, 4, 8, (9, 10), (0, 2)),  # one of five
]


def drawn(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Input, filters, bias and a gradient of the output, in channels-last layout."""
    images, channels, outputs, (height, width), padding = case
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, channels, height, width, generator=generator).relu()
    weight = torch.randn(outputs, channels, 5, 5, generator=generator)
    bias = torch.randn(outputs, generator=generator)
    back = torch.randn(F.conv2d(x, weight, padding=padding).shape, generator=generator)
    last = torch.channels_last
    return x.contiguous(memory_format=last), weight.contiguous(memory_format=last), bias, back


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("height", HEIGHTS)
def test_the_matrices_compute_a_correlation(height: int) -> None:
    d, g = torch.arange(height + 4.0).double().square(), torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0]).double()
    a_t, g_matrix, b_t = matrices(height)
    y = a_t @ ((g_matrix @ g) * (b_t @ d))
    assert torch.allclose(y, F.conv1d(d[None, None], g[None, None])[0, 0])
    assert (a_t[:, 0] == 1).all()  # where a bias is added


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_convolution(case: Case) -> None:
    padding = case[-1]
    *inputs, back = drawn(case)
    exact = [z.double().requires_grad_() for z in inputs]
    fast = [z.clone().requires_grad_() for z in inputs]
    expected = F.conv2d(exact[0], exact[1], exact[2], padding=padding)
    y = winograd(fast[0], fast[1], fast[2], padding)
    assert y.shape == expected.shape
    assert apart(y.detach(), expected.detach()) < ROUNDING
    wanted = torch.autograd.grad(expected, exact, back.double())
    for one, other in zip(torch.autograd.grad(y, fast, back), wanted, strict=True):
        assert apart(one, other) < ROUNDING


def test_a_bias_is_not_needed_and_any_layout_will_do() -> None:
    x, weight, _, _ = drawn(CASES[0])
    y = winograd(x.contiguous(), weight.contiguous(), None, (2, 2))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert apart(y, F.conv2d(x, weight, padding=2)) < ROUNDING


def test_threads_side_by_side_give_the_same_bits() -> None:
    x, weight, bias, _ = drawn(CASES[0])
    alone = winograd(x, weight, bias, (2, 2))
    with ThreadPoolExecutor(3) as pool:
        for y in pool.map(lambda _: winograd(x, weight, bias, (2, 2)), range(12)):
            assert torch.equal(y, alone)


def test_it_is_taken_for_large_convolutions_alone() -> None:
    assert not winograd_pays(torch.zeros(32, 14, 14), torch.zeros(32, 32, 5, 5), (2, 2))  # one image without an axis
    x, weight = torch.zeros(64, 32, 14, 14), torch.zeros(64, 32, 5, 5)
    assert winograd_pays(x, weight, (2, 2))
    assert winograd_pays(x, weight, (1, 4))
    assert not winograd_pays(x[:32], weight, (2, 2))  # few products
    assert not winograd_pays(x[:, :16].repeat(4, 1, 1, 1), weight[:, :16], (2, 2))  # few channels
    assert not winograd_pays(x.repeat(2, 1, 1, 1), weight[:40], (2, 2))  # rows that start inside a line of the cache
    assert not winograd_pays(x.repeat(4, 1, 1, 1), weight[..., :3, :3], (1, 1))  # other filters
    assert not winograd_pays(
        x[:, :, :2].repeat(8, 1, 1, 1), weight, (2, 2)
    )  # too few rows to save half of the products
    assert not winograd_pays(x[..., :4, :4], weight, (0, 0))  # nothing comes out
    assert not winograd_pays(x, weight, (5, 5))
    assert not winograd_pays(x.double(), weight.double(), (2, 2))
