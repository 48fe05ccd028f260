"""Parameters of a network, and multiply-adds for one input."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def multiply_adds(module: nn.Module, example: Tensor) -> int:
    """Of convolutions and linear layers: outputs times the inputs each one sums over."""
    total = 0

    def count(layer: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total
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
