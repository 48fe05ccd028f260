"""Modules that are traced: all agents at once, operation by operation, against the module vectorised as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from peermask.compute.network import Batch, build_network
from peermask.compute.traced import TracedStack
from peermask.models.architectures import models, resnet18
from peermask.models.layout import ChannelAffine
from trunk_reference import apart


class Normed(nn.Module):
    """Layer norms, and parameters and buffers that are used as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(7, 6), nn.LayerNorm(6), nn.Linear(6, 5)
        self.root = nn.RMSNorm(6)
        self.factor, self.summand = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(1, 6))
        self.register_buffer("fixed", torch.arange(6.0))

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm(self.into(x)))
        x = self.root(self.summand + x * self.factor) - self.fixed
        return self.out(x)  # type: ignore[no-any-return]


class Depthwise(nn.Module):
    """What small networks for telephones are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.affine = ChannelAffine(torch.ones(8), torch.zeros(8))
        self.depth = nn.Conv2d(8, 8, (3, 1), padding="same", groups=8)
        self.norm, self.point = nn.GroupNorm(4, 8), nn.Conv2d(8, 4, 1, dilation=2)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.affine(self.into(x)))
        y = self.depth(x)
        y += x
        y = self.act(self.norm(y))
        gate = torch.sigmoid(F.adaptive_avg_pool2d(y, 1))
        x = torch.cat([F.max_pool2d(y * gate, 2), F.avg_pool2d(x, 2)], dim=1)
        a, b = x.chunk(2, 1)
        z = torch.cat([self.point(a).mean((2, 3)), b.flatten(2).amax(-1)], 1)
        return self.head(z.view(z.size(0), -1))  # type: ignore[no-any-return]


CASES = {
    "residual": (lambda: resnet18((3, 8, 8), 5, width=4), (3, 8, 8)),
    "one channel": (lambda: resnet18((1, 8, 8), 5, width=4, groups=1), (1, 8, 8)),
    "series": (lambda: models["cnn1d"].make((3, 9), 5), (3, 9)),
    "tokens": (lambda: models["text"].make((6,), 5, vocabulary=11), (6,)),
    "norms": (Normed, (7,)),
    "depthwise": (Depthwise, (3, 8, 8)),
    "volume": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 5)), (1, 3, 3, 3)),
    "no flattening": (lambda: nn.Sequential(nn.Linear(7, 6), nn.ELU(), nn.Linear(6, 5)), (7,)),
}


def from_general(name: str, agents: int, batch: int, valid: bool = False) -> list[float]:
    """How far gradients, losses and outputs lie from those of the module vectorised."""
    make, shape = CASES[name]
    torch.manual_seed(0)
    tokens = name == "tokens"
    network = build_network(make(), shape, 5, tokens=tokens)
    assert isinstance(network.stack, TracedStack)
    params = 0.5 * torch.randn(agents, network.layout.total)
    inputs = torch.randint(0, 11, (agents, batch, *shape)) if tokens else torch.randn(agents, batch, *shape)
    real = torch.ones(agents, batch)
    real[0, 1:] = 0
    given = Batch(inputs, torch.randint(0, 5, (agents, batch)), real if valid else None)
    results = [
        [*own.gradient(params, given), own.outputs(params, inputs)] for own in (network, replace(network, stack=None))
    ]
    return [apart(one, other) for one, other in zip(*results, strict=True)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("valid", [False, True])
def test_a_traced_module_is_the_vectorised_one(name: str, valid: bool) -> None:
    assert max(from_general(name, 3, 4, valid)) < 1e-4


@settings(deadline=None, max_examples=12)
@given(
    name=st.sampled_from(["residual", "norms", "depthwise", "tokens"]),
    agents=st.integers(2, 4),
    batch=st.integers(1, 3),
)
def test_of_any_number_of_agents_and_samples(name: str, agents: int, batch: int) -> None:
    assert max(from_general(name, agents, batch)) < 1e-4


def test_norms_take_in_the_addition_and_the_activation_that_follow() -> None:
    network = build_network(resnet18((3, 8, 8), 5, width=4), (3, 8, 8), 5)
    assert isinstance(network.stack, TracedStack)
    norms = [step for step in network.stack.steps if step.kind == "norm"]
    plain, added = (1, True), (2, True)
    assert [(len(step.inputs), step.relu) for step in norms[:5]] == [plain, plain, added, plain, added]
    assert [step.kind for step in network.stack.steps if step.kind in ("add", "relu")] == []


class Mean(nn.Module):
    """Samples that hear of one another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y - y.mean(0)  # type: ignore[no-any-return]


class Choice(Mean):
    """A path that depends on what was computed."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y if y.sum() > 0 else -y  # type: ignore[no-any-return]


class Overwritten(Mean):
    """An activation that changes what is used again."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return F.relu(y, inplace=True) + y  # type: ignore[no-any-return]


class Strange(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.weight.mean()


@pytest.mark.parametrize("module", [Mean(), Choice(), Overwritten(), Strange(7, 5), nn.Bilinear(7, 7, 5)])
def test_what_cannot_be_stacked_is_left_to_the_general_path(module: nn.Module) -> None:
    if isinstance(module, nn.Bilinear):
        module = nn.Sequential(nn.Linear(7, 5), nn.PReLU())
    assert build_network(module, (7,), 5).stack is None
