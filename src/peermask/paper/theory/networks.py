"""The theorem's networks: convolutions without bias, targets of class F, and the random network g.

    f(x) = v_L * σ(v_{L-1} * ... σ(v_1 * x))        (20)

The random g of (21) is the same with twice as many layers. Everything is float64: the errors of interest are far below
what float32 resolves.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from peermask.errors import DataError, ModelError
from peermask.streams import stream

Layers = tuple[Tensor, ...]  # layer l: [O_l, O_{l-1}, d_l, d_l], float64
IMAGES_AT_ONCE = 256  # bounds the memory of a wide g


def forward(layers: Layers, images: Tensor) -> Tensor:
    """Equation (20): the last layer has no ReLU after it, and outputs keep the input's height and width."""
    for index, weight in enumerate(layers):
        images = functional.conv2d(images, weight, padding=weight.shape[-1] // 2)  # [B, O_l, D, D]
        if index < len(layers) - 1:
            images = functional.relu(images)
    return images


@torch.no_grad()
def outputs(layers: Layers, images: Tensor) -> Tensor:
    """`forward` over many images, a chunk at a time."""
    return torch.cat([forward(layers, chunk) for chunk in images.split(IMAGES_AT_ONCE)])  # [N, O_L, D, D]


def require_unit_inputs(images: Tensor, channels: int) -> Tensor:
    """Assumption 1: every input entry is in [0, 1]. Returns the images as float64."""
    if images.ndim != 4 or images.shape[1] != channels or images.shape[0] == 0:
        raise DataError(f"inputs have shape {list(images.shape)}; the network takes [n > 0, {channels}, D, D]")
    images = images.to(torch.float64)
    low, high = float(images.min()), float(images.max())
    if not (low >= 0.0 and high <= 1.0):  # written so that a NaN is refused too
        raise DataError(f"inputs range over [{low:g}, {high:g}]; the theorem needs [0, 1]: divide by the peak value")
    return images


ROUNDING = 1e-12  # a norm scaled to 1 may come out this much above it


@dataclass(frozen=True)
class Target:
    """A network of class F: v_l in [-1, 1] and ‖v_l‖_1 <= 1 for each layer l, checked when it is made."""

    layers: Layers

    def __post_init__(self) -> None:
        if not self.layers:
            raise ModelError("a target network needs at least one layer")
        before = self.layers[0].shape[1] if self.layers[0].ndim == 4 else 0
        for number, weight in enumerate(self.layers, start=1):
            _require_layer(number, weight, before)
            before = weight.shape[0]

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def weights(self) -> int:
        return sum(weight.numel() for weight in self.layers)

    @property
    def problems(self) -> int:
        """O_{l-1} O_l d_l^2 L of the widest layer: the count inside the lemma's logarithm."""
        return max(weight.numel() for weight in self.layers) * self.depth


def _require_layer(number: int, weight: torch.Tensor, channels: int) -> None:
    where = f"layer {number} of the target"
    if weight.ndim != 4 or weight.shape[2] != weight.shape[3] or weight.shape[2] % 2 == 0:
        raise ModelError(f"{where} has shape {list(weight.shape)}; a kernel is [O, C, d, d] with d odd")
    if weight.shape[1] != channels:
        raise ModelError(f"{where} reads {weight.shape[1]} channels but is given {channels}")
    if weight.dtype != torch.float64:
        raise ModelError(f"{where} is {weight.dtype}; float64 is needed to measure such small errors")
    if not bool(torch.isfinite(weight).all()):
        raise ModelError(f"{where} has weights that are NaN or infinite; did the training diverge?")
    largest, norm = float(weight.abs().max()), float(weight.abs().sum())
    if largest > 1.0 + ROUNDING:
        raise ModelError(f"{where} has a weight of size {largest:.6g}; class F allows [-1, 1]: scale it down")
    if norm > 1.0 + ROUNDING:
        raise ModelError(f"{where} has l1 norm {norm:.6g}; class F allows at most 1: divide it by that")


# For target layer l, the random network g of (21) has a d x d layer into I_l channels and a 1 x 1 layer back to O_l
# channels, all entries uniform in [-1, 1]. The over-parameterisation is n = I_l / O_l, the hidden channels for each
# output channel.

MAX_WIDTH = 1024
Masks = tuple[Tensor, ...]  # one bool tensor for each of g's 2L layers, of that layer's shape


@dataclass(frozen=True)
class RandomNet:
    layers: Layers  # 2L tensors: [I_l, O_{l-1}, d, d] then [O_l, I_l, 1, 1], for each l
    width: int  # n = I_l / O_l

    def blocks(self) -> list[tuple[Tensor, Tensor]]:
        """The pair of layers that stands in for each target layer."""
        return list(zip(self.layers[::2], self.layers[1::2], strict=True))

    def fingerprint(self) -> str:
        """A hash of every weight: two equal ones mean that g was not touched in between."""
        digest = hashlib.blake2b(digest_size=8)
        for weight in self.layers:
            digest.update(weight.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def masked(self, masks: Masks) -> Layers:
        """The layers w ⊙ m of g_m; g itself is left as it is."""
        require_masks(self, masks)
        return tuple(weight * mask.to(weight.dtype) for weight, mask in zip(self.layers, masks, strict=True))


def draw(like: Target, width: int, seed: int) -> RandomNet:
    """g for targets shaped like `like`, with I_l = width · O_l.

    Hidden channels are drawn one after the other, so a wider g begins with the channels of a narrower one
    of the same seed, and more width can only bring each weight's subset sum nearer.
    """
    if not 1 <= width <= MAX_WIDTH:
        raise ModelError(f"width {width} hidden channels per output channel; 1 to {MAX_WIDTH} are allowed")
    layers: list[Tensor] = []
    for number, weight in enumerate(like.layers):
        outs, ins, side, _ = weight.shape
        hidden = width * outs
        first = _uniform(seed, 2 * number, hidden * ins * side * side).reshape(hidden, ins, side, side)
        second = _uniform(seed, 2 * number + 1, hidden * outs).reshape(hidden, outs)
        layers += [first, second.T.reshape(outs, hidden, 1, 1).contiguous()]
    return RandomNet(tuple(layers), width)


def _uniform(seed: int, layer: int, count: int) -> Tensor:
    return torch.from_numpy(2.0 * stream(seed, "theory/g", step=layer).uniform(count) - 1.0)


def require_masks(net: RandomNet, masks: Masks) -> None:
    """Masks must have g's shapes and hold nothing but 0 and 1."""
    if len(masks) != len(net.layers):
        raise ModelError(f"{len(masks)} mask tensors for a network of {len(net.layers)} layers")
    for number, (weight, mask) in enumerate(zip(net.layers, masks, strict=True), start=1):
        if mask.shape != weight.shape:
            raise ModelError(f"mask {number} has shape {list(mask.shape)}; g's is {list(weight.shape)}")
        if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
            raise ModelError(f"mask {number} holds values other than 0 and 1")
