"""A module as one agent on a CPU computes it fastest: the same function, and the same names of parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from peermask.kernels.response_norm import BETA, response_norm
from peermask.kernels.winograd import winograd, winograd_pays
from peermask.models.architectures import LocalResponseNorm


def made_for_one(module: nn.Module) -> nn.Module:
    """The module, changed in place, for input and parameters that are `laid_out`."""
    return fewer_passes(fewer_products(pool_first(module)))


def pool_first(module: nn.Module) -> nn.Module:
    """Max-pooling before the activation that stands before it: the same numbers, on a quarter of the entries.

    ReLU and ELU never fall as their input rises, so they keep the largest entry of a window the largest; ELU may
    round it differently in the last place. Neither has parameters, so no name changes.
    """
    for child in module.modules():
        if type(child) is nn.Sequential:  # a subclass may call its layers in an order of its own
            for place in range(len(child) - 1):
                if isinstance(child[place], nn.ReLU | nn.ELU) and isinstance(child[place + 1], nn.MaxPool2d):
                    child[place], child[place + 1] = child[place + 1], child[place]
    return module


class FewerProducts(nn.Conv2d):
    """A convolution that takes the shorter way where there is one."""

    def forward(self, x: Tensor) -> Tensor:
        padding = self.padding
        assert not isinstance(padding, str)
        if winograd_pays(x, self.weight, (padding[0], padding[1])):
            return winograd(x, self.weight, self.bias, (padding[0], padding[1]))
        return super().forward(x)


def fewer_products(module: nn.Module) -> nn.Module:
    """Plain convolutions as `FewerProducts`: a little other rounding, and no new parameters."""
    for child in module.modules():
        if type(child) is nn.Conv2d and _is_plain(child):  # a subclass may compute something else
            child.__class__ = FewerProducts  # all that is different is `forward`
    return module


class FewerPasses(LocalResponseNorm):
    """A norm that goes through a block of pixels while it is in the cache."""

    def forward(self, x: Tensor) -> Tensor:
        return response_norm(x, self.size, self.alpha)


def fewer_passes(module: nn.Module) -> nn.Module:
    """Local response norms as `FewerPasses`: a little other rounding."""
    for child in module.modules():
        if type(child) is LocalResponseNorm and child.beta == BETA:
            child.__class__ = FewerPasses
    return module


def _is_plain(conv: nn.Conv2d) -> bool:
    once = conv.stride == (1, 1) and conv.dilation == (1, 1) and conv.groups == 1
    return once and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def laid_out(x: Tensor) -> Tensor:
    """Channels last for whatever has channels: a copy, except where it is so already."""
    if x.dim() != 4:
        return x.contiguous()
    y = x.contiguous(memory_format=torch.channels_last)
    if y.shape[1] == 1:
        # One channel lies the same either way, and torch would take it for channels first from here on.
        _, _, height, width = y.shape
        y = y.as_strided(y.shape, (height * width, 1, width, 1), y.storage_offset())
    return y
