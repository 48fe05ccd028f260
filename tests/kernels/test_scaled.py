"""Convolutions, group norms and sums of scaled halves, interpreted on a CPU, against torch's own operations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from peermask.compute.scaled import scaled_norm, split, to_floats, to_scaled, total
from peermask.compute.scaled_conv import Conv, conv_of_patches, scaled_conv
from trunk_reference import apart

pytestmark = pytest.mark.usefixtures("interpreted")


def both(fast: Callable[..., Tensor], slow: Callable[..., Tensor], *leaves: Tensor) -> list[float]:
    """How far the result and the gradients of all leaves lie apart."""
    results = []
    for compute in (fast, slow):
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        y = compute(*own)
        sent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        results.append([y, *torch.autograd.grad(y, own, sent)])
    return [apart(one, other) for one, other in zip(*results, strict=True)]


def convolved(x: Tensor, w: Tensor, bias: Tensor | None, conv: Conv) -> Tensor:
    biases = [None] * len(x) if bias is None else list(bias)
    each = zip(x, w, biases, strict=True)
    return torch.stack([F.conv2d(own, kernel, b, conv.stride, conv.padding) for own, kernel, b in each])


@pytest.mark.parametrize(
    "conv",
    [
        Conv(6, 5, 32, 64, 3, 3, 1, 1),
        Conv(4, 8, 32, 32, 3, 3, 2, 1),
        Conv(4, 4, 64, 32, 1, 1, 2, 0),
        Conv(1, 1, 32, 96, 1, 1, 1, 0),
        Conv(4, 4, 32, 32, 2, 2, 1, 0),
        Conv(3, 3, 96, 32, 1, 3, 1, 1),
    ],
)
def test_a_convolution_equals_its_reference(conv: Conv) -> None:
    torch.manual_seed(0)
    sizes = torch.tensor([1.0, 1e-3]).view(2, 1, 1, 1, 1)  # agents with numbers of different sizes
    x = sizes * torch.randn(2, 3, conv.into, conv.height, conv.width)
    w = torch.randn(2, conv.out, conv.into, conv.rows, conv.columns) / 10
    bias = 0.01 * torch.randn(2, conv.out)
    assert conv.fits(3)
    apart = both(
        lambda x, w, bias: to_floats(scaled_conv(conv, to_scaled(x), w, bias)),
        lambda x, w, bias: convolved(x, w, bias, conv),
        x,
        w,
        bias,
    )
    assert max(apart) < 0.001


@pytest.mark.parametrize("conv", [Conv(6, 5, 3, 32, 3, 3, 1, 1), Conv(7, 7, 1, 64, 5, 5, 2, 2)])
def test_a_first_layer_equals_its_reference(conv: Conv) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, conv.into, conv.height, conv.width)
    w = torch.randn(2, conv.out, conv.into, conv.rows, conv.columns)
    assert conv.fits_patches(3)
    apart = both(lambda w: to_floats(conv_of_patches(conv, x, w, None)), lambda w: convolved(x, w, None, conv), w)
    assert max(apart) < 0.001


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("channels", "groups", "side", "users"), [(32, 2, 5, 1), (64, 64, 3, 2), (16, 1, 1, 2), (16, 2, 2, 3)]
)
def test_a_norm_equals_its_reference(
    channels: int, groups: int, side: int, users: int, added: bool, relu: bool
) -> None:
    torch.manual_seed(0)
    y = 3 * torch.randn(2, 3, channels, side, side) + torch.randn(2, 3, channels, 1, 1)
    rest, gain, shift = torch.randn_like(y), torch.randn(2, channels), torch.randn(2, channels)

    def fast(y: Tensor, gain: Tensor, shift: Tensor, rest: Tensor) -> Tensor:
        more = to_scaled(rest) if added else None
        each = scaled_norm(to_scaled(y), groups, gain, shift, 1e-5, more, relu=relu, users=users)
        assert len(each) == users
        z = sum(factor * to_floats(own) for factor, own in zip((1, 1e-4, 0.1), each, strict=False))
        return z if added else z + 0 * rest  # type: ignore[return-value]

    def slow(y: Tensor, gain: Tensor, shift: Tensor, rest: Tensor) -> Tensor:
        each = zip(y, gain, shift, strict=True)
        z = torch.stack([F.group_norm(own, groups, g, s, 1e-5) for own, g, s in each])
        z = z + rest if added else z + 0 * rest
        return sum((1, 1e-4, 0.1)[:users]) * (F.relu(z) if relu else z)

    result, *gradients = both(fast, slow, y, gain, shift, rest)
    assert result < 0.001
    assert max(gradients[:3] if not added else gradients) < (0.1 if relu else 0.002)  # relu chooses by rounding


def test_a_small_spread_about_a_large_mean_is_not_lost() -> None:
    torch.manual_seed(0)
    y = 100 + torch.randn(1, 1, 32, 8, 8)
    y = to_floats(to_scaled(y))  # as halves hold it
    one, zero = torch.ones(1, 32), torch.zeros(1, 32)
    z = to_floats(*scaled_norm(to_scaled(y), 2, one, zero, 1e-5, None, relu=False))
    assert apart(z[0], F.group_norm(y[0], 2)) < 0.001


def test_what_has_several_users_gets_the_sum_of_their_gradients() -> None:
    torch.manual_seed(0)

    def fast(x: Tensor) -> Tensor:
        one, two, three = split(to_scaled(x), 3)
        return to_floats(total(total(one, None, relu=True), total(two, three)))

    assert max(both(fast, lambda x: F.relu(x) + 2 * x, torch.randn(2, 3, 32, 4, 4))) < 0.001


@pytest.mark.parametrize("size", [1e-8, 1e8])
def test_numbers_outside_the_range_of_halves_are_carried_into_it(size: float) -> None:
    torch.manual_seed(0)
    conv = Conv(4, 4, 32, 32, 3, 3, 1, 1)
    w1, w2 = torch.randn(1, 32, 32, 3, 3) / size**2, torch.randn(1, 32, 32, 3, 3) * size**2
    apart = both(
        lambda x, w1, w2: to_floats(scaled_conv(conv, scaled_conv(conv, to_scaled(x), w1, None), w2, None)),
        lambda x, w1, w2: convolved(convolved(x, w1, None, conv), w2, None, conv),
        size * torch.randn(1, 2, 32, 4, 4),
        w1,
        w2,
    )
    assert max(apart) < 0.002


def test_an_agent_is_computed_alike_in_any_chunk() -> None:
    torch.manual_seed(0)
    conv = Conv(4, 4, 32, 32, 3, 3, 2, 1)
    x = torch.randn(3, 2, 32, 4, 4) * torch.tensor([1.0, 1e3, 1e-4]).view(3, 1, 1, 1, 1)
    w, gain, shift = torch.randn(3, 32, 32, 3, 3), torch.randn(3, 32), torch.randn(3, 32)

    def computed(rows: slice) -> list[Tensor]:
        leaves = [leaf[rows].clone().requires_grad_() for leaf in (x, w, gain, shift)]
        y = scaled_conv(conv, to_scaled(leaves[0]), leaves[1], None)
        z = to_floats(*scaled_norm(y, 2, leaves[2], leaves[3], 1e-5, None, relu=True))
        return [z, *torch.autograd.grad(z.sum(), leaves)]

    for together, alone in zip(computed(slice(0, 3)), computed(slice(1, 2)), strict=True):
        assert torch.equal(together[1:2], alone)


def test_zeros_give_zeros() -> None:
    conv = Conv(4, 4, 32, 32, 3, 3, 1, 1)
    w = torch.zeros(1, 32, 32, 3, 3, requires_grad=True)
    y = to_floats(scaled_conv(conv, to_scaled(torch.randn(1, 2, 32, 4, 4)), w, None))
    assert not y.any()
    assert not torch.autograd.grad(y.sum(), w)[0].isnan().any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, which computes here, remarks on every NaN
def test_numbers_that_are_none_are_not_lost() -> None:
    conv = Conv(4, 4, 32, 32, 3, 3, 1, 1)
    x = torch.randn(1, 2, 32, 4, 4)
    x[0, 0, 0, 2, 2] = float("nan")
    y = scaled_conv(conv, to_scaled(x), torch.randn(1, 32, 32, 3, 3), None)
    z = scaled_norm(y, 2, torch.ones(1, 32), torch.zeros(1, 32), 1e-5, None, relu=True)
    assert to_floats(*z).isnan().any()
