"""A module made faster, for one agent on a CPU or many on a GPU: the same function with the same parameter names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from peermask.compute.response_norm import BETA, response_norm
from peermask.compute.winograd import winograd, winograd_pays
from peermask.models.architectures import LocalResponseNorm

M = TypeVar("M", bound=nn.Module)


class CpuModule:
    """Optimised copy of a module for one thread; a call passes all of its parameters.

    `torch.func.functional_call` looks the module's tensors up in every call, and meanwhile holds Python's lock.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = optimise_for_cpu(copy.deepcopy(module))
        names = [name.rpartition(".") for name, _ in self.module.named_parameters()]
        self._places = {
            f"{owner}{dot}{name}": (self.module.get_submodule(owner)._parameters, name) for owner, dot, name in names
        }

    def __call__(self, params: dict[str, Tensor], inputs: Tensor) -> Tensor:
        for name, tensor in params.items():
            owner, own = self._places[name]
            owner[own] = tensor  # type: ignore[assignment]
        result: Tensor = self.module(inputs)
        return result


def optimise_for_cpu(module: nn.Module) -> nn.Module:
    """The module, changed in place, for inputs and parameters in `channels_last` layout."""
    return use_blocked_norms(use_sliced_pointwise(use_winograd(flatten_last(pool_first(module)))))


def pool_first(module: nn.Module) -> nn.Module:
    """Swap an activation and the max-pooling after it: the same result, on a quarter of the entries.

    ReLU and ELU are monotonic, so the largest entry of a window stays the largest; with ELU the last bit may differ
    by rounding. Neither has parameters, so no name changes.
    """
    for child in module.modules():
        if type(child) is nn.Sequential:  # a subclass may call its layers in another order
            for place in range(len(child) - 1):
                if isinstance(child[place], nn.ReLU | nn.ELU) and isinstance(child[place + 1], nn.MaxPool2d):
                    child[place], child[place + 1] = child[place + 1], child[place]
    return module


class FlattenLast(nn.Flatten):
    """A flattening whose gradient is in channels-last layout: an operation on two layouts takes ten times as long."""

    def forward(self, input: Tensor) -> Tensor:
        if input.requires_grad:
            input.register_hook(channels_last)
        return super().forward(input)


def flatten_last(module: nn.Module) -> nn.Module:
    """Replace flattenings by `FlattenLast`: the same numbers."""
    return _replace(module, nn.Flatten, FlattenLast)


class WinogradConv2d(nn.Conv2d):
    """A convolution by Winograd's algorithm where that is faster."""

    def forward(self, x: Tensor) -> Tensor:
        padding = self.padding
        assert not isinstance(padding, str)
        if winograd_pays(x, self.weight, (padding[0], padding[1])):
            return winograd(x, self.weight, self.bias, (padding[0], padding[1]))
        return super().forward(x)


def use_winograd(module: nn.Module) -> nn.Module:
    """Replace plain convolutions by `WinogradConv2d`: results differ by rounding, parameters stay."""
    return _replace(module, nn.Conv2d, WinogradConv2d, is_plain)


class SlicedPointwiseConv2d(nn.Conv2d):
    """A 1x1 convolution with a stride, on only the entries that it uses."""

    def forward(self, x: Tensor) -> Tensor:
        used = channels_last(x[:, :, :: self.stride[0], :: self.stride[1]])
        return nn.functional.conv2d(used, self.weight, self.bias)


def use_sliced_pointwise(module: nn.Module) -> nn.Module:
    """Replace strided 1x1 convolutions by `SlicedPointwiseConv2d`: the same sums over the same entries.

    On CPUs with AVX2 and no AVX-512, torch 2.13's own corrupts memory in channels-last layout with 4 input channels.
    """
    return _replace(module, nn.Conv2d, SlicedPointwiseConv2d, _is_strided_pointwise)


class PointwiseConv2d(nn.Conv2d):
    """A 1x1 convolution as a product of matrices: over many agents one batched product, where a convolution over groups
    has slow gradients."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, O, H, W]
        # Channels are never last in memory: torch vectorises norms and pooling only in this layout.
        y = self.weight.flatten(1) @ x.transpose(0, 1).flatten(1)  # [O, C] @ [C, B H W]
        if self.bias is not None:
            y = y + self.bias[:, None]
        return y.view(len(y), len(x), *x.shape[2:]).transpose(0, 1)


def use_products(module: nn.Module) -> nn.Module:
    """Replace 1x1 convolutions by `PointwiseConv2d`: results differ by rounding."""
    return _replace(
        module,
        nn.Conv2d,
        PointwiseConv2d,
        lambda conv: is_plain(conv) and (*conv.kernel_size, *conv.padding) == (1, 1, 0, 0),
    )


class BlockedResponseNorm(LocalResponseNorm):
    """A norm that is computed block by block, so that a block stays in the cache."""

    def forward(self, x: Tensor) -> Tensor:
        return response_norm(x, self.size, self.alpha)


def use_blocked_norms(module: nn.Module) -> nn.Module:
    """Replace local response norms by `BlockedResponseNorm`: results differ by rounding."""
    return _replace(module, LocalResponseNorm, BlockedResponseNorm, lambda norm: norm.beta == BETA)


def _replace(
    module: nn.Module, before: type[M], after: type[M], where: Callable[[M], bool] = lambda _: True
) -> nn.Module:
    """Change the class of children, in place: only `forward` differs. A subclass may compute something else."""
    for child in module.modules():
        if type(child) is before and where(child):
            child.__class__ = after
    return module


def _is_strided_pointwise(conv: nn.Conv2d) -> bool:
    unpadded = conv.padding == (0, 0) and conv.groups == 1
    return unpadded and conv.kernel_size == (1, 1) and conv.stride != (1, 1)


def is_plain(conv: nn.Conv2d) -> bool:
    once = conv.stride == (1, 1) and conv.dilation == (1, 1) and conv.groups == 1
    return once and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def channels_last(x: Tensor) -> Tensor:
    """A 4-d tensor in channels-last layout, copied if it is not already; others contiguous."""
    if x.dim() != 4:
        return x.contiguous()
    y = x.contiguous(memory_format=torch.channels_last)
    if y.shape[1] == 1:
        # With one channel both layouts are the same in memory, and torch would treat it as channels first.
        _, _, height, width = y.shape
        y = y.as_strided(y.shape, (height * width, 1, width, 1), y.storage_offset())
    return y
