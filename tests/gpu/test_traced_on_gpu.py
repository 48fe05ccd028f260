"""Residual networks and others that are no chain, on a GPU, against the module vectorised as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from peermask.compute.network import Batch, Network, build_network
from peermask.compute.scaled import scaled_norm, to_floats, to_scaled
from peermask.compute.scaled_conv import Conv, scaled_conv
from peermask.compute.traced import TracedStack
from peermask.models.architectures import ResidualBlock, models
from trunk_reference import apart

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def on_gpu(network: Network, agents: int) -> tuple[Network, torch.Tensor]:
    """With parameters as drawn by torch, a little different for each agent."""
    own = {name: parameter.detach().flatten() for name, parameter in network.module.named_parameters()}
    params = torch.cat([own[layer.name] for layer in network.layout.layers]).repeat(agents, 1)
    return replace(network, module=network.module.cuda()), (params * (1 + 0.1 * torch.randn_like(params))).cuda()


def residual() -> Network:
    """A residual network of one block with its input added as it is, and one with a stride."""
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(2, 64), nn.ReLU()]
    blocks = [ResidualBlock(64, 64, 1, 2), ResidualBlock(64, 128, 2, 2)]
    module = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return build_network(module, (3, 16, 16), 10)


def test_a_residual_network_follows_the_general_path() -> None:
    torch.manual_seed(0)
    network = residual()
    assert isinstance(network.stack, TracedStack)
    assert network.stack.fits_kernels(network.layout, (3, 16, 16), 20)
    network, params = on_gpu(network, 3)
    general = replace(network, stack=None)
    batch = Batch(torch.randn(3, 20, 3, 16, 16, device="cuda"), torch.randint(0, 10, (3, 20), device="cuda"))
    (gradient, loss), (expected, other) = network.gradient(params, batch), general.gradient(params, batch)
    assert apart(loss, other) < 0.005
    assert apart(gradient, expected) < 0.1  # relu chooses by rounding
    assert apart(network.outputs(params, batch.inputs), general.outputs(params, batch.inputs)) < 0.01


def test_a_text_network_follows_the_general_path() -> None:
    torch.manual_seed(0)
    network = build_network(models["text"].make((12,), 10, vocabulary=50), (12,), 10, tokens=True)
    network, params = on_gpu(network, 3)
    batch = Batch(torch.randint(0, 50, (3, 16, 12), device="cuda"), torch.randint(0, 10, (3, 16), device="cuda"))
    general = replace(network, stack=None)
    assert apart(network.gradient(params, batch)[0], general.gradient(params, batch)[0]) < 0.01


def test_an_agent_has_the_same_gradient_in_any_chunk() -> None:
    torch.manual_seed(0)
    network, params = on_gpu(residual(), 8)
    batch = Batch(torch.randn(8, 20, 3, 16, 16, device="cuda"), torch.randint(0, 10, (8, 20), device="cuda"))
    rows = slice(3, 5)
    few = Batch(batch.inputs[rows], batch.targets[rows])
    together, alone = network.gradient(params, batch)[0], network.gradient(params[rows], few)[0]
    assert apart(together[rows], alone) < 0.01  # a library multiplies larger stacks of matrices in another order


@pytest.mark.parametrize("conv", [Conv(7, 7, 32, 32, 3, 3, 1, 1), Conv(8, 8, 64, 128, 3, 3, 2, 1)])
def test_sizes_that_fill_no_tile(conv: Conv) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, conv.into, conv.height, conv.width, device="cuda", requires_grad=True)
    w = torch.randn(2, conv.out, conv.into, 3, 3, device="cuda", requires_grad=True)
    gain, shift = torch.randn(2, 2, conv.out, device="cuda")
    y = to_floats(*scaled_norm(scaled_conv(conv, to_scaled(x), w, None), 2, gain, shift, 1e-5, None, relu=False))
    each = [torch.nn.functional.conv2d(a, b, None, conv.stride, 1) for a, b in zip(x.double(), w.double(), strict=True)]
    normed = [
        torch.nn.functional.group_norm(own, 2, g, s)
        for own, g, s in zip(each, gain.double(), shift.double(), strict=True)
    ]
    expected = torch.stack(normed).float()
    sent = torch.randn_like(y)
    assert apart(y, expected) < 0.002
    pairs = zip(torch.autograd.grad(y, [x, w], sent), torch.autograd.grad(expected, [x, w], sent), strict=True)
    assert max(apart(one, other) for one, other in pairs) < 0.005
