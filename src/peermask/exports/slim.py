"""A network without its dead filters: what the mask emptied is cut out of the tensors, not only set to zero.

A filter is dead if none of its weights that read a living input is left. Its output is then a constant, the bias;
what the next layer makes of it is folded into that layer's bias, and both lose the channel. Where a constant cannot
be folded (it is not zero, and a padded convolution or a norm over channels comes next) the filter stays.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peermask.data.normalisation import FromRaw
from peermask.errors import ExportError
from peermask.models.architectures import LocalResponseNorm
from peermask.models.outputs import OwnLabels

Leaves: TypeAlias = list[tuple[str, nn.Module]]

_ELEMENTWISE = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
)

_POOLS = (*(nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d), *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d))
_UNPADDED = (0, (0,), (0, 0))


class NotSlimmable(ExportError):
    """A layer through which channels cannot be followed."""


@dataclass(frozen=True)
class Slim:
    module: nn.Module
    removed: dict[str, int]  # filters taken out, by layer


@dataclass(frozen=True)
class Flow:
    """Channels between two layers: which live, and the constant value of each that does not."""

    live: Tensor  # [C] bool
    constant: Tensor  # [C], 0 where live


def slim(module: nn.Module, shape: tuple[int, ...]) -> Slim:
    """Cut dead filters out of a chain of layers, or raise NotSlimmable with the layer that prevents it."""
    if isinstance(module, FromRaw):
        inner = slim(module.network, shape)
        whole = copy.copy(module)
        whole._modules = {**module._modules, "network": inner.module}
        return Slim(whole.eval(), inner.removed)
    if isinstance(module, OwnLabels):
        inner = slim(module.network, shape)
        return Slim(OwnLabels(inner.module, module.own).eval(), inner.removed)
    leaves = _chain(module)
    flow = Flow(torch.ones(shape[0], dtype=torch.bool), torch.zeros(shape[0]))
    x = torch.zeros(1, *shape)
    cut: dict[str, nn.Module] = {}
    removed: dict[str, int] = {}
    with torch.no_grad():
        for index, (name, layer) in enumerate(leaves):
            out: Tensor = layer(x)
            if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear):
                slimmed, flow = _cut(layer, flow, leaves[index + 1 :])
                removed[name] = int((~flow.live).sum())
            else:
                slimmed, flow = _follow(layer, flow, x.shape)
            cut[name.replace(".", "_")] = slimmed
            x = out
    return Slim(nn.Sequential(OrderedDict(cut)).eval(), {name: count for name, count in removed.items() if count})


def _chain(module: nn.Module, prefix: str = "") -> Leaves:
    """The layers of nested Sequentials in order; anything that wires layers in its own way is refused."""
    if not isinstance(module, nn.Sequential):
        raise _refused(prefix or "(the whole model)", module)
    leaves: Leaves = []
    for short, child in module.named_children():
        name = f"{prefix}.{short}" if prefix else short
        if isinstance(child, nn.Sequential):
            leaves += _chain(child, name)
        elif _known(child):
            leaves.append((name, child))
        else:
            raise _refused(name, child)
    return leaves


def _known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros"
    if isinstance(layer, nn.Flatten):
        return layer.start_dim == 1 and layer.end_dim == -1
    return isinstance(layer, (nn.Linear, LocalResponseNorm, *_POOLS, *_ELEMENTWISE))


def _refused(name: str, layer: nn.Module) -> NotSlimmable:
    return NotSlimmable(f"layer {name} is a {type(layer).__name__}, through which dead filters cannot be followed")


def _cut(layer: nn.Conv1d | nn.Conv2d | nn.Linear, flow: Flow, after: Leaves) -> tuple[nn.Module, Flow]:
    """A layer without the channels that died before it and the filters that are dead in it."""
    weight = layer.weight[:, flow.live]  # [O, I', ...]
    lost = layer.weight[:, ~flow.live].flatten(2).sum(2) if layer.weight.dim() > 2 else layer.weight[:, ~flow.live]
    bias = lost @ flow.constant[~flow.live]  # [O]
    if layer.bias is not None:
        bias = bias + layer.bias
    dead = ~weight.flatten(1).any(1)  # [O]
    live = ~(dead & _foldable(bias, after))
    if not live.any():
        live[0] = True  # a layer without outputs is no layer
    slimmed = copy.copy(layer)  # keeps stride, padding and the like
    slimmed._parameters = {}
    slimmed.weight = nn.Parameter(weight[live].clone(), requires_grad=False)
    slimmed.bias = None
    if layer.bias is not None or bool(bias.any()):
        slimmed.bias = nn.Parameter(bias[live].clone(), requires_grad=False)
    if isinstance(slimmed, nn.Conv1d | nn.Conv2d):
        slimmed.in_channels, slimmed.out_channels = weight.shape[1], int(live.sum())
    else:
        slimmed.in_features, slimmed.out_features = weight.shape[1], int(live.sum())
    return slimmed, Flow(live, torch.where(live, 0.0, bias))


def _foldable(constant: Tensor, after: Leaves) -> Tensor:
    """[O]: whether the next layer with weights can take each constant into its bias."""
    folds = torch.ones_like(constant, dtype=torch.bool)
    for _, layer in after:
        zero = constant == 0
        match layer:
            case nn.Linear():
                return folds
            case nn.Conv1d() | nn.Conv2d():
                return folds if layer.padding in (*_UNPADDED, "valid") else folds & zero
            case LocalResponseNorm():
                folds &= zero
            case nn.AvgPool1d() | nn.AvgPool2d() if layer.padding not in _UNPADDED:
                folds &= zero
            case nn.Flatten():
                pass
            case _ if isinstance(layer, _POOLS):
                pass
            case _:
                constant = layer(constant)
    return torch.zeros_like(folds)  # these are the outputs


def _follow(layer: nn.Module, flow: Flow, shape: torch.Size) -> tuple[nn.Module, Flow]:
    """A layer without weights, and what it makes of the channels; `shape` is of its whole input."""
    match layer:
        case nn.Flatten():
            each = shape[1:].numel() // shape[1]
            return layer, Flow(flow.live.repeat_interleave(each), flow.constant.repeat_interleave(each))
        case LocalResponseNorm():
            return (layer if flow.live.all() else CutResponseNorm(layer, flow.live)), flow
        case _ if isinstance(layer, _POOLS):
            return layer, flow
        case _:
            return layer, Flow(flow.live, torch.where(flow.live, 0.0, layer(flow.constant)))


class CutResponseNorm(nn.Module):
    """`LocalResponseNorm` over channels some of which are gone: each still sees only its old neighbours."""

    places: Tensor  # [size, C'] where in the input each channel's neighbour is; C' for one that is gone

    def __init__(self, full: LocalResponseNorm, live: Tensor) -> None:
        super().__init__()
        self.size, self.alpha, self.beta = full.size, full.alpha, full.beta
        channels = live.nonzero()[:, 0]  # [C'] their old numbers
        gone = len(channels)
        place = torch.full((len(live) + 2 * full.size,), gone)
        place[channels + full.size] = torch.arange(gone)
        steps = torch.arange(full.size) - full.size // 2
        self.register_buffer("places", place[channels[None] + full.size + steps[:, None]])

    def forward(self, x: Tensor) -> Tensor:  # [B, C', H, W]
        squares = F.pad(x * x, (0, 0, 0, 0, 0, 1))  # one more channel, all zero
        window = squares.index_select(1, self.places[0])
        for place in self.places[1:]:
            window = window + squares.index_select(1, place)
        return x * (1.0 + self.alpha / self.size * window).pow(-self.beta)


# Parameters of a network, and multiply-adds for one input.


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def count_multiply_adds(module: nn.Module, example: Tensor) -> int:
    """Count multiply-adds: outputs times the inputs that each sums over; of recurrent layers all weights a step."""
    total = 0

    def count(layer: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        nonlocal total
        if isinstance(layer, nn.RNNBase) and isinstance(inputs[0], Tensor):
            steps = inputs[0].numel() // layer.input_size
            total += steps * sum(p.numel() for name, p in layer.named_parameters() if name.startswith("weight"))
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear) and isinstance(output, Tensor):
            total += output.numel() * layer.weight[0].numel()

    hooks = [child.register_forward_hook(count) for child in module.modules()]
    try:
        with torch.no_grad():
            module(example[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return total
