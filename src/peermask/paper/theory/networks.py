"""The theorem's networks: targets of class F, trained for two agents, and the random network g.

    f(x) = v_L * σ(v_{L-1} * ... σ(v_1 * x))        (20)

The random g of (21) is the same with twice as many layers. Everything is float64: the errors of interest are far below
what float32 resolves.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from peermask.data.dataset import Dataset, Split
from peermask.data.normalisation import Range
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
    """A network of class F: ‖v_l‖_1 <= 1 for each layer l, hence v_l in [-1, 1]."""

    layers: Layers

    def __post_init__(self) -> None:
        for number, weight in enumerate(self.layers, start=1):
            norm = float(weight.abs().sum())
            if not norm <= 1.0 + ROUNDING:  # written so that a NaN is refused too
                raise ModelError(f"layer {number} of the target has l1 norm {norm:.6g}; class F allows at most 1")

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


# For target layer l, the random network g of (21) has a d x d layer into I_l channels and a 1 x 1 layer back to O_l
# channels, all entries uniform in [-1, 1]. The over-parameterisation is n = I_l / O_l, the hidden channels for each
# output channel.

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
        return tuple(weight * mask.to(weight.dtype) for weight, mask in zip(self.layers, masks, strict=True))


def draw(like: Target, width: int, seed: int) -> RandomNet:
    """g for targets shaped like `like`, with I_l = width · O_l.

    Hidden channels are drawn one after the other, so a wider g begins with the channels of a narrower one
    of the same seed, and more width can only bring each weight's subset sum nearer.
    """
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


# Each layer is v_l = u_l / max(1, ‖u_l‖_1) with u_l free, so every step stays in F. The theorem's outputs are
# whole maps [O_L, D, D]; an agent reads label o off as the largest entry of channel o, and its loss is the
# cross-entropy of those readings times `SHARPNESS`. Neither the reading nor the factor is part of f.

SHARPNESS = 300.0
STEP_SIZE = 0.01


@dataclass(frozen=True)
class Examples:
    images: Tensor  # [n, C, D, D], float64 in [0, 1]
    labels: Tensor  # [n], the output channel that should be largest


def initial(channels: tuple[int, ...], side: int, seed: int) -> Layers:
    """f_0: uniform weights, each layer scaled to l1 norm 1. `channels` is (O_0, ..., O_L)."""
    layers: list[Tensor] = []
    for number, (ins, outs) in enumerate(pairwise(channels)):
        draw = stream(seed, "theory/f0", step=number).uniform(outs * ins * side * side)
        weight = torch.from_numpy(2.0 * draw - 1.0).reshape(outs, ins, side, side)
        layers.append(weight / weight.abs().sum())
    return tuple(layers)


def train(start: Layers, examples: Examples, steps: int) -> Target:
    """Adam on all of an agent's examples at once, from `start`."""
    images = require_unit_inputs(examples.images, start[0].shape[1])
    free = [weight.clone().requires_grad_() for weight in start]
    optimizer = torch.optim.Adam(free, lr=STEP_SIZE)
    for _ in range(steps):
        optimizer.zero_grad()
        readings = read(forward(_in_class(free), images))
        loss = functional.cross_entropy(SHARPNESS * readings, examples.labels)
        loss.backward()
        optimizer.step()
    return Target(tuple(weight.detach() for weight in _in_class(free)))


def read(maps: Tensor) -> Tensor:
    """The agents' reading of an output: the largest entry of each channel, [B, O, D, D] -> [B, O]."""
    return maps.amax((2, 3))


def accuracy(layers: Layers, examples: Examples) -> float:
    guess = read(outputs(layers, examples.images)).argmax(1)
    return float((guess == examples.labels).double().mean())


def _in_class(free: list[Tensor]) -> Layers:
    return tuple(weight / weight.abs().sum().clamp(min=1.0) for weight in free)


LABELS_EACH = 3
CLASSES = 2 * LABELS_EACH  # output channels O_L: enough for two agents with nothing in common


@dataclass(frozen=True)
class AgentData:
    labels: tuple[int, ...]
    train: Examples
    test: Examples


def two_agents(dataset: Dataset, shared: int) -> tuple[AgentData, AgentData]:
    """Agent 1 has labels 0, 1, 2; agent 2 has three labels of which `shared` are agent 1's.

    Training images of a shared label are dealt alternately, so that even two agents with the same labels have
    learned from different images. Test images are those of an agent's labels.
    """
    assert isinstance(dataset.normalisation, Range)  # as digits have, from 0
    train, test = (_unit(split, dataset.normalisation.high) for split in (dataset.train, dataset.test))
    first = tuple(range(LABELS_EACH))
    second = tuple(range(LABELS_EACH - shared, 2 * LABELS_EACH - shared))
    return (
        AgentData(first, _deal(train, first, second, turn=0), _only(test, first)),
        AgentData(second, _deal(train, second, first, turn=1), _only(test, second)),
    )


def all_images(agents: tuple[AgentData, AgentData]) -> Tensor:
    """The 𝒳 of the theorem: every image either agent has, for training or testing."""
    sets = [part.images for agent in agents for part in (agent.train, agent.test)]
    images: Tensor = torch.unique(torch.cat(sets), dim=0)
    return images  # [n, C, D, D]


def _unit(split: Split, peak: float) -> Examples:
    return Examples(split.inputs.double() / peak, split.targets)


def _only(examples: Examples, labels: tuple[int, ...]) -> Examples:
    keep = torch.isin(examples.labels, torch.tensor(labels))
    return Examples(examples.images[keep], examples.labels[keep])


def _deal(examples: Examples, mine: tuple[int, ...], other: tuple[int, ...], turn: int) -> Examples:
    keep = torch.zeros_like(examples.labels, dtype=torch.bool)
    for label in mine:
        rows = (examples.labels == label).nonzero()[:, 0]
        keep[rows[turn::2] if label in other else rows] = True
    return Examples(examples.images[keep], examples.labels[keep])
