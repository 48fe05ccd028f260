"""Layout of a network's parameters in one flat vector: masked weights first, then all others.

    0 ................ P_w ............ P
    | masked weights   | biases, norms  |

Every state tensor of an algorithm is such a vector with a leading agent axis, so an algorithm needs no
knowledge of the network, and a message is one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from peermask.errors import ModelError, nearest


class ChannelAffine(nn.Module):
    """x_c · weight_c + bias_c: a batch norm whose averages are fixed."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, ...]
        aside = (1,) * (x.dim() - 2)
        return torch.addcmul(self.bias.view(-1, *aside), x, self.weight.view(-1, *aside))


Kind = Literal["conv", "linear", "embedding", "recurrent", "bias", "norm-weight", "norm-bias", "other"]
UNMASKABLE = "not masked, other"
MASKABLE: tuple[Kind, ...] = ("conv", "linear", "embedding", "recurrent")

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_EMBEDDING = (nn.Embedding, nn.EmbeddingBag)
_NORM = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, ChannelAffine)
_STATEFUL = (nn.modules.batchnorm._BatchNorm,)
_RANDOM = (nn.modules.dropout._DropoutNd,)
_RANDOM_INSIDE = (nn.RNNBase, nn.MultiheadAttention)  # which have their own dropout


@dataclass(frozen=True)
class Layer:
    """One parameter tensor and its place in the flat vector."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    offset: int
    fan_in: int

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def filters(self) -> int:
        """O: output filters of a convolution, rows of a linear layer."""
        return self.shape[0]

    @property
    def span(self) -> slice:
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class Layout:
    masked: tuple[Layer, ...]
    kept: tuple[Layer, ...]

    @cached_property
    def weights(self) -> int:
        """P_w: how many weights a mask covers."""
        return sum(layer.size for layer in self.masked)

    @cached_property
    def total(self) -> int:
        """P: all parameters."""
        return self.weights + sum(layer.size for layer in self.kept)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.masked + self.kept

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """n_l of the masked layers: the layer table of a message."""
        return tuple(layer.size for layer in self.masked)

    @property
    def account(self) -> dict[str, tuple[Layer, ...]]:
        """Parameters by their use: masked, or unchanged and why."""
        groups: dict[str, tuple[Layer, ...]] = {}
        reasons = dict.fromkeys(MASKABLE, "not masked, by mask.layers")
        reasons |= {"bias": "not masked, bias", "other": UNMASKABLE}
        for layer in self.layers:
            fate = f"masked, {layer.kind}" if layer in self.masked else reasons.get(layer.kind, "not masked, norm")
            groups[fate] = (*groups.get(fate, ()), layer)
        return groups

    def unflatten(self, params: Tensor) -> dict[str, Tensor]:
        """Views by parameter name."""
        return {
            layer.name: params[..., layer.span].unflatten(-1, layer.shape)  # [A, P] -> [A, *shape]
            for layer in self.layers
        }


def find_layout(module: nn.Module, masked: Sequence[str] = ("*",)) -> Layout:
    """Lay out a network: weights whose names match a pattern are masked.

    They are those of convolutions, linear layers, embeddings, recurrent layers and attention. Everything else (biases,
    norms, parameters of layers unknown here) keeps its value in mask methods and is trained in real-valued ones.
    """
    refuse_unsuitable(module)
    seen: dict[int, str] = {}
    layers: list[tuple[str, Kind, tuple[int, ...], int]] = []
    for prefix, child in module.named_modules():
        for short, parameter in child.named_parameters(recurse=False):
            name = f"{prefix}.{short}" if prefix else short
            if is_lazy(parameter):
                raise ModelError(f"model parameter {name!r} has no shape yet; call the module once before passing it")
            if id(parameter) in seen:
                raise ModelError(
                    f"model parameters {seen[id(parameter)]!r} and {name!r} are one tensor (tied), of which a mask "
                    "would have to be two; use separate parameters"
                )
            seen[id(parameter)] = name
            shape = tuple(parameter.shape)
            layers.append((name, _kind(child, short), shape, _fan_in(child, shape)))
    maskable = [name for name, kind, _, _ in layers if kind in MASKABLE]
    if not maskable:
        raise ModelError("the model has no convolution, linear, embedding or recurrent layer to mask")
    for pattern in masked:
        if not any(fnmatchcase(name, pattern) for name in maskable):
            raise ModelError(f"mask.layers: {pattern!r} matches no layer; {nearest(pattern, maskable)}")
    chosen = {name for name in maskable if any(fnmatchcase(name, pattern) for pattern in masked)}
    offset = 0
    groups: tuple[list[Layer], list[Layer]] = ([], [])
    for name, kind, shape, fan_in in sorted(layers, key=lambda item: item[0] not in chosen):
        layer = Layer(name, kind, shape, offset, fan_in)
        groups[name not in chosen].append(layer)
        offset += layer.size
    return Layout(*map(tuple, groups))


def refuse_unsuitable(module: nn.Module) -> None:
    """Refuse batch norm and dropout: their state is not part of the flat vector, so all agents would share it."""
    for name, child in module.named_modules():
        if isinstance(child, _STATEFUL):
            raise ModelError(
                f"model layer {name!r} is a batch norm, whose averages all agents would share; "
                "peermask.without_batch_norm(module) puts group norms in their place"
            )
        if isinstance(child, _RANDOM) and child.p > 0:
            raise ModelError(
                f"model layer {name!r} is a dropout, which draws from a global generator; set p=0 or remove it"
            )
        if isinstance(child, _RANDOM_INSIDE) and child.dropout > 0:
            raise ModelError(
                f"model layer {name!r} has a dropout of {child.dropout:g}, which draws from a global generator; set 0"
            )


def turn_off_dropout(module: nn.Module) -> int:
    """Turn dropout off, since a pretrained network answers without it; return how many layers had one."""
    count = 0
    for child in module.modules():
        if isinstance(child, _RANDOM) and child.p > 0:
            child.p, count = 0.0, count + 1
        elif isinstance(child, _RANDOM_INSIDE) and child.dropout > 0:
            child.dropout, count = 0.0, count + 1
    return count


def _kind(child: nn.Module, short: str) -> Kind:
    if isinstance(child, _NORM):
        return "norm-weight" if short == "weight" else "norm-bias"
    if isinstance(child, (*_CONV, nn.Linear)):
        if short == "bias":
            return "bias"
        return "linear" if isinstance(child, nn.Linear) else "conv"
    if isinstance(child, _EMBEDDING):
        return "embedding"
    if isinstance(child, nn.RNNBase):
        return "recurrent" if short.startswith("weight") else "bias"
    if isinstance(child, nn.MultiheadAttention) and short.endswith(("proj_weight", "proj_bias")):
        return "linear" if short.endswith("weight") else "bias"
    return "other"


def _fan_in(child: nn.Module, shape: tuple[int, ...]) -> int:
    """Inputs that one output sums over; a bias counts those of the weight beside it, and an embedding looks up one."""
    if isinstance(child, _EMBEDDING):
        return 1
    if isinstance(child, nn.RNNBase) and len(shape) == 1:
        return child.hidden_size
    weight = getattr(child, "weight", None)
    reference = tuple(weight.shape) if isinstance(weight, Tensor) and weight.dim() > 1 else shape
    return max(1, prod(reference[1:]))
