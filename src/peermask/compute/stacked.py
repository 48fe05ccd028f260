"""A network of common layers, computed for all agents at once.

Understands chains of [convolution, activation, norm, max-pool] blocks and [linear, activation] layers; any other
module takes the general path, which vectorises it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peermask.compute.conv_block import Activation, BlockShape, ConvBlock, shapes_of, trunk_fits
from peermask.compute.conv_trunk import run_trunk, trunk_trials
from peermask.compute.cpu_module import is_plain
from peermask.kernels import by_kernels
from peermask.models.architectures import LocalResponseNorm
from peermask.models.layout import Layout


@dataclass(frozen=True)
class Stage:
    """A block or a linear layer, and the names of its parameters."""

    weight: str
    bias: str | None
    activation: Activation
    block: ConvBlock | None  # None for a linear layer


@dataclass(frozen=True)
class StackedChain:
    stages: tuple[Stage, ...]

    def __call__(self, params: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Outputs [A, B, O] of inputs [A, B, ...] under each agent's own parameters; blocks take images."""
        if self._blocks:
            x = self._trunk(params, inputs.permute(0, 1, 3, 4, 2))  # channels last: [A, B, H, W, C]
            x = x.permute(0, 1, 4, 2, 3).flatten(2)  # as nn.Flatten orders: channels, rows, columns
        else:
            x = inputs.flatten(2)
        return _linear(self.stages[len(self._blocks) :], params, x)

    @cached_property
    def _blocks(self) -> tuple[ConvBlock, ...]:
        """The blocks of the first stages; linear layers follow."""
        return tuple(stage.block for stage in self.stages if stage.block is not None)

    def _trunk(self, params: dict[str, Tensor], x: Tensor) -> Tensor:
        """All blocks, by the fused kernels if they support the shapes, else one by one."""
        stages = self.stages[: len(self._blocks)]
        weights = [params[stage.weight] for stage in stages]  # [A, O, C, R, S] each
        biases = [None if stage.bias is None else params[stage.bias] for stage in stages]
        shapes = shapes_of(self._blocks, x.shape[2], x.shape[3], [w.shape[1:] for w in weights])
        able = by_kernels(x) and not x.requires_grad
        if shapes and able and trunk_fits(shapes, x.shape[1]):
            return run_trunk(shapes, x, weights, biases)
        for block, weight, bias in zip(self._blocks, weights, biases, strict=True):
            x = block(x, weight, bias)
        return x

    def trials(
        self, layout: Layout, shape: Sequence[int], batch: int, device: torch.device
    ) -> list[Callable[[], object]]:
        """Each kernel once, for one agent, to be called in any order."""
        if not self._blocks or not self.fits_kernels(layout, shape, batch):
            return []
        shapes = self._shapes(layout, shape)
        x = torch.zeros(1, batch, *shape, device=device).permute(0, 1, 3, 4, 2)  # [1, B, H, W, C]
        weights = [torch.zeros(1, s.out, s.into, s.rows, s.columns, device=device) for s in shapes]
        return trunk_trials(shapes, x, weights, [stage.bias is not None for stage in self.stages[: len(shapes)]])

    def fits_kernels(self, layout: Layout, shape: Sequence[int], batch: int) -> bool:
        """Whether the fused kernels support all blocks, for images [C, H, W]; torch's own are used if not."""
        return not self._blocks or trunk_fits(self._shapes(layout, shape), batch)

    def _shapes(self, layout: Layout, shape: Sequence[int]) -> tuple[BlockShape, ...]:
        sizes = {layer.name: layer.shape for layer in layout.layers}
        kernels = [sizes[stage.weight] for stage in self.stages[: len(self._blocks)]]
        return shapes_of(self._blocks, shape[1], shape[2], kernels)


def plan_stack(module: nn.Module) -> StackedChain | None:
    """The module as a chain of stages, or None if it has any other layer.

    Types are compared exactly: a subclass may compute something else.
    """
    if type(module) is not nn.Sequential:
        return None
    # `named_children` would leave out the second occurrence of an activation that is used twice.
    named = module.named_modules(remove_duplicate=False)
    layers = [(name, layer) for name, layer in named if name and "." not in name]
    trained = [layer for _, layer in layers if any(True for _ in layer.parameters())]
    if len(set(trained)) < len(trained):
        return None
    stages: list[Stage] = []
    flat = False
    while layers:
        name, layer = layers.pop(0)
        if type(layer) is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1:
            flat = True
        elif type(layer) is nn.Linear and flat:
            stages.append(Stage(*_names(name, layer), _take_activation(layers), None))
        elif type(layer) is nn.Conv2d and not flat and is_plain(layer) and layer.padding[0] == layer.padding[1]:
            block = _take_block(layer, layers)
            if block is None:
                return None
            stages.append(Stage(*_names(name, layer), block.activation, block))
        else:
            return None
    return StackedChain(tuple(stages)) if flat else None


def _take_block(conv: nn.Conv2d, layers: list[tuple[str, nn.Module]]) -> ConvBlock | None:
    activation = _take_activation(layers)
    scale = None
    if layers and isinstance(layers[0][1], LocalResponseNorm):
        norm = layers.pop(0)[1]
        assert isinstance(norm, LocalResponseNorm)
        if (norm.size, norm.beta) != (4, 0.75):
            return None
        scale = norm.alpha / norm.size
    if not layers or not isinstance(layers[0][1], nn.MaxPool2d):
        return None
    pool = layers.pop(0)[1]
    assert isinstance(pool, nn.MaxPool2d)
    size, stride, padding = (_one(value) for value in (pool.kernel_size, pool.stride, pool.padding))
    if size is None or stride is None or padding is None:
        return None
    if pool.dilation != 1 or pool.ceil_mode or pool.return_indices:
        return None
    return ConvBlock(int(conv.padding[0]), activation, scale, size, stride, padding)


def _take_activation(layers: list[tuple[str, nn.Module]]) -> Activation:
    if layers and isinstance(layers[0][1], nn.ReLU):
        layers.pop(0)
        return "relu"
    if layers and isinstance(layers[0][1], nn.ELU) and layers[0][1].alpha == 1.0:
        layers.pop(0)
        return "elu"
    return "none"


def _names(name: str, layer: nn.Conv2d | nn.Linear) -> tuple[str, str | None]:
    return f"{name}.weight", None if layer.bias is None else f"{name}.bias"


def _one(value: int | Sequence[int]) -> int | None:
    """A size that is the same in both directions."""
    if isinstance(value, int):
        return value
    return value[0] if len(set(value)) == 1 else None


def _linear(stages: Sequence[Stage], params: dict[str, Tensor], x: Tensor) -> Tensor:
    for stage in stages:
        x = x @ params[stage.weight].transpose(1, 2)  # [A, B, I] @ [A, I, O]
        x = _activate(x if stage.bias is None else x + params[stage.bias][:, None], stage.activation)
    return x


def _activate(x: Tensor, activation: Activation) -> Tensor:
    if activation == "none":
        return x
    return F.elu(x) if activation == "elu" else torch.relu(x)
