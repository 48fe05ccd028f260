"""The random network g of equation (21): drawn once, shared by both agents, never trained.

For target layer l it has a d x d layer into I_l channels and a 1 x 1 layer back to O_l channels, all entries
uniform in [-1, 1]. The over-parameterisation is n = I_l / O_l, the hidden channels for each output channel.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from peermask.errors import ModelError
from peermask.streams import stream
from peermask.theory.network import Layers
from peermask.theory.target import Target

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
