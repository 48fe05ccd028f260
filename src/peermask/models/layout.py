"""Where each parameter of a network lies in one flat vector: masked weights first, then all that is never masked.

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

from torch import Tensor, nn

from peermask.errors import ModelError, nearest

Kind = Literal["conv", "linear", "bias", "norm-weight", "norm-bias", "other"]

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORM = (nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_STATEFUL = (nn.modules.batchnorm._BatchNorm,)
_RANDOM = (nn.modules.dropout._DropoutNd,)


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

    def unflatten(self, params: Tensor) -> dict[str, Tensor]:
        """Views by parameter name."""
        return {
            layer.name: params[..., layer.span].unflatten(-1, layer.shape)  # [A, P] -> [A, *shape]
            for layer in self.layers
        }


def find_layout(module: nn.Module, masked: Sequence[str] = ("*",)) -> Layout:
    """Lay out a network: weights of convolutions and linear layers whose names match a pattern are masked.

    Everything else (biases, norms) keeps its value in mask methods and is trained in real-valued ones.
    """
    refuse_unsuitable(module)
    found: list[tuple[str, Kind, tuple[int, ...], int]] = []
    for prefix, child in module.named_modules():
        for short, parameter in child.named_parameters(recurse=False):
            name = f"{prefix}.{short}" if prefix else short
            shape = tuple(parameter.shape)
            found.append((name, _kind(child, short), shape, _fan_in(child, shape)))
    maskable = [name for name, kind, _, _ in found if kind in ("conv", "linear")]
    if not maskable:
        raise ModelError("the model has no convolution or linear layer to mask")
    for pattern in masked:
        if not any(fnmatchcase(name, pattern) for name in maskable):
            raise ModelError(f"mask.layers: {pattern!r} matches no layer; {nearest(pattern, maskable)}")
    chosen = {name for name in maskable if any(fnmatchcase(name, pattern) for pattern in masked)}
    offset = 0
    groups: tuple[list[Layer], list[Layer]] = ([], [])
    for name, kind, shape, fan_in in sorted(found, key=lambda item: item[0] not in chosen):
        layer = Layer(name, kind, shape, offset, fan_in)
        groups[name not in chosen].append(layer)
        offset += layer.size
    return Layout(*map(tuple, groups))


def refuse_unsuitable(module: nn.Module) -> None:
    """Batch norm and dropout have state that is not part of the flat vector, so it would be shared by all agents."""
    for name, child in module.named_modules():
        if isinstance(child, _STATEFUL):
            raise ModelError(
                f"model layer {name!r} is a batch norm, whose averages all agents would share; use GroupNorm"
            )
        if isinstance(child, _RANDOM) and child.p > 0:
            raise ModelError(
                f"model layer {name!r} is a dropout, which draws from a global generator; set p=0 or remove it"
            )


def _kind(child: nn.Module, short: str) -> Kind:
    if isinstance(child, _NORM):
        return "norm-weight" if short == "weight" else "norm-bias"
    if isinstance(child, (*_CONV, nn.Linear)):
        if short == "bias":
            return "bias"
        return "linear" if isinstance(child, nn.Linear) else "conv"
    return "other"


def _fan_in(child: nn.Module, shape: tuple[int, ...]) -> int:
    """Inputs that one output sums over; a bias counts those of the weight beside it."""
    weight = getattr(child, "weight", None)
    reference = tuple(weight.shape) if isinstance(weight, Tensor) and weight.dim() > 1 else shape
    return max(1, prod(reference[1:]))
