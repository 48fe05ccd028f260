"""Built-in networks: the paper's AlexNet, and smaller ones for small images. Any nn.Module can be used instead."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from peermask.registry import Registry

Shape = tuple[int, int, int]  # C, H, W
models: Registry[Callable[..., nn.Module]] = Registry("model")

Width = Annotated[int, Field(ge=1, le=65536)]


class LocalResponseNorm(nn.Module):
    """x_c / (1 + α · mean_{c-2..c+1} x²)^0.75, as torch defines a window of 4.

    Written as shifted sums: torch's own implementation pools over channels, which vmap cannot batch well, and took most
    of a forward pass.
    """

    def __init__(self, size: int, alpha: float, beta: float = 0.75) -> None:
        super().__init__()
        self.size, self.alpha, self.beta = size, alpha, beta

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        channels = x.shape[-3]
        below = self.size // 2
        padded = F.pad(x * x, (0, 0, 0, 0, below, self.size - 1 - below))
        window = sum((padded.narrow(-3, k, channels) for k in range(1, self.size)), padded.narrow(-3, 0, channels))
        return x * (1.0 + self.alpha / self.size * window).pow(-self.beta)


@models.register("alexnet")
def alexnet(shape: Shape, classes: int, *, out_act: Literal["elu", "none"] = "elu") -> nn.Module:
    """The paper's network: three 5x5 convolutions with ELU, LRN and max-pooling, two linear layers."""
    blocks: list[nn.Module] = []
    for (into, out), alpha, pad in zip(pairwise((shape[0], 64, 128, 256)), (2e-5, 1e-4, 1e-4), (0, 0, 1), strict=True):
        blocks += [
            nn.Conv2d(into, out, 5, padding=1, bias=False),
            nn.ELU(),
            LocalResponseNorm(4, alpha),
            nn.MaxPool2d(3, stride=2, padding=pad),
        ]
    flat = _flat_size(nn.Sequential(*blocks), shape)
    head: list[nn.Module] = [nn.Flatten(), nn.Linear(flat, 192), nn.ELU(), nn.Linear(192, classes)]
    return nn.Sequential(*blocks, *head, *([nn.ELU()] if out_act == "elu" else []))


@models.register("cnn")
def cnn(shape: Shape, classes: int, *, channels: tuple[Width, ...] = (32, 64), hidden: Width = 128) -> nn.Module:
    """A small convolutional network: 5x5 (3x3 under 16 pixels) convolutions, ReLU, 2x2 pooling, one hidden layer."""
    kernel = 5 if min(shape[1:]) >= 16 else 3
    blocks: list[nn.Module] = []
    for into, out in pairwise((shape[0], *channels)):
        blocks += [nn.Conv2d(into, out, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2)]
    flat = _flat_size(nn.Sequential(*blocks), shape)
    head = [nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return nn.Sequential(*blocks, *head)


@models.register("mlp")
def mlp(shape: Shape, classes: int, *, hidden: tuple[Width, ...] = (256, 128)) -> nn.Module:
    """Linear layers with ReLU over the flattened image."""
    sizes = (shape[0] * shape[1] * shape[2], *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for into, out in pairwise(sizes):
        layers += [nn.Linear(into, out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with group norm, added to their input."""

    def __init__(self, into: int, out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or into != out:
            self.shortcut = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.GroupNorm(groups, out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


@models.register("resnet18")
def resnet18(shape: Shape, classes: int, *, width: Width = 64, groups: Annotated[int, Field(ge=1)] = 2) -> nn.Module:
    """ResNet-18 for small images, with group norm in place of batch norm."""
    layers: list[nn.Module] = [
        nn.Conv2d(shape[0], width, 3, 1, 1, bias=False),
        nn.GroupNorm(groups, width),
        nn.ReLU(),
    ]
    into = width
    for stage in range(4):
        out = width * 2**stage
        for block in range(2):
            layers.append(ResidualBlock(into, out, 2 if stage and not block else 1, groups))
            into = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, classes))


def _flat_size(trunk: nn.Module, shape: Shape) -> int:
    with torch.no_grad():
        return int(trunk(torch.zeros(1, *shape)).numel())
