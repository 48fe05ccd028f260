"""A residual network by the kernels, interpreted on a CPU, against the same by torch's own operations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from peermask.compute import traced
from peermask.compute.network import Batch, build_network
from peermask.compute.traced import TracedStack
from peermask.models.architectures import ResidualBlock
from trunk_reference import apart

pytestmark = pytest.mark.usefixtures("interpreted")


def test_a_residual_network_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.GroupNorm(2, 32), nn.ReLU()]
    module = nn.Sequential(
        *layers, ResidualBlock(32, 32, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5)
    )
    network = build_network(module, (3, 4, 4), 5)
    assert isinstance(network.stack, TracedStack)
    assert network.stack.fits_kernels(network.layout, (3, 4, 4), 3)
    own = {name: parameter.detach().flatten() for name, parameter in module.named_parameters()}
    params = torch.cat([own[layer.name] for layer in network.layout.layers]).repeat(2, 1)
    params = params * (1 + 0.3 * torch.randn_like(params))
    batch = Batch(torch.randn(2, 2, 3, 4, 4), torch.randint(0, 5, (2, 2)))
    plain = [*network.gradient(params, batch), network.outputs(params, batch.inputs)]
    general = replace(network, stack=None).gradient(params, batch)
    assert apart(plain[0], general[0]) < 1e-5
    monkeypatch.setattr(traced, "by_kernels", lambda _: True)
    fast = [*network.gradient(params, batch), network.outputs(params, batch.inputs)]
    assert apart(fast[0], plain[0]) < 0.1  # relu chooses by rounding
    assert max(apart(one, other) for one, other in zip(fast[1:], plain[1:], strict=True)) < 0.002
