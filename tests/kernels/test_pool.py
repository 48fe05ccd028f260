"""Pooling and ReLU at once, against torch's two operations."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from peermask import compiled
from peermask.kernels.pool import pool_and_relu
from twins import by_both

# Few values, so that entries of a window are often equal, and few are positive.
entries = st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0, float("nan"), float("inf"), float("-inf")])


def pooled(x: Tensor) -> tuple[Tensor, Tensor]:
    """The result, and the gradient of its entries weighted 1, 2, ..., and the last -0.0."""
    leaf = x.clone().requires_grad_()
    y = pool_and_relu(leaf)
    weights = torch.tensor([*range(1, y.numel()), -0.0]).view(y.shape)
    (gradient,) = torch.autograd.grad(y, leaf, weights)
    return y.detach(), gradient


def assert_same(one: Tensor, other: Tensor) -> None:
    """To the last bit, but for which NaN it is."""
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert np.array_equal(one.numpy(), other.numpy(), equal_nan=True)
    assert torch.equal(one.nan_to_num().signbit(), other.nan_to_num().signbit())


def test_by_hand() -> None:
    """The first of two equal entries has the gradient; none where the largest is not positive; an odd row is left."""
    rows = [[1.0, 3.0, -1.0, -2.0, 5.0], [3.0, 2.0, -1.0, 0.0, 5.0], [9.0] * 5]
    for y, gradient in by_both(partial(pooled, torch.tensor(rows).view(1, 1, 3, 5))):
        assert y.tolist() == [[[[3.0, 0.0]]]]
        assert gradient.tolist() == [[[[0.0, 1.0, 0.0, 0.0, 0.0], [0.0] * 5, [0.0] * 5]]]


@given(st.integers(1, 2), st.integers(1, 3), st.integers(2, 5), st.integers(2, 5), st.data())
def test_is_torchs(images: int, channels: int, height: int, width: int, data: st.DataObject) -> None:
    count = images * channels * height * width
    drawn = data.draw(st.lists(entries, min_size=count, max_size=count))
    x = torch.tensor(drawn).view(images, channels, height, width)
    for fast, slow in zip(*by_both(partial(pooled, x)), strict=True):
        assert_same(fast, slow)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_many_channels_in_both_layouts(layout: torch.memory_format) -> None:
    x = torch.randn(3, 33, 9, 14, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=layout)
    for fast, slow in zip(*by_both(partial(pooled, x)), strict=True):
        assert_same(fast, slow)


def test_a_side_too_short_is_torchs_error() -> None:
    with patch.object(compiled, "LEAST", 1), pytest.raises(RuntimeError, match="too small"):
        pool_and_relu(torch.randn(2, 3, 1, 8))


def test_other_tensors_are_torchs() -> None:
    assert pool_and_relu(torch.randn(2, 4, 4)).shape == (2, 2, 2)
    assert pool_and_relu(torch.randn(1, 2, 4, 4).double()).dtype == torch.float64
