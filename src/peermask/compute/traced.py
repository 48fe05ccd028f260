"""Any module that can be traced into known operations, computed for all agents at once.

Values are tensors [A * B, ...], or on a GPU what the kernels take and give (compute/scaled.py): convolutions, group
norms, additions and ReLU that follow one another never leave that form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from peermask.compute.operations import beside, compute
from peermask.compute.scaled import Scaled, norm_fits, scaled_norm, split, to_floats, to_scaled, total
from peermask.compute.scaled_conv import Conv, conv_of_patches, scaled_conv
from peermask.compute.tracing import Step, trace, uses
from peermask.kernels import by_kernels
from peermask.models.layout import Layout

Value = Any  # Tensor [A * B, ...], Scaled, or what is no tensor: sizes, tuples


@dataclass(frozen=True)
class TracedStack:
    steps: tuple[Step, ...]
    constants: dict[str, Tensor]  # buffers by name, the same for all agents
    kernels: bool = True  # whether to use them, where there is a GPU
    _moved: dict[tuple[str, torch.device], Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, params: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Outputs [A, B, O] of inputs [A, B, ...] under each agent's own parameters."""
        return _Pass(self, params, inputs).run()

    @cached_property
    def needed(self) -> dict[fx.Node, int]:
        return dict(uses(self.steps))

    @cached_property
    def convolutions(self) -> tuple[tuple[Conv | None, Step], ...]:
        """Each convolution by its layer; None if kernels cannot compute it for any batch."""
        return tuple((conv_of(step), step) for step in self.steps if isinstance(step.layer, nn.modules.conv._ConvNd))

    def constant(self, name: str, device: torch.device) -> Tensor:
        """A constant, copied to a device once."""
        if (name, device) not in self._moved:
            self._moved[name, device] = self.constants[name].to(device)
        return self._moved[name, device]

    def fits_kernels(self, _layout: Layout, _shape: Sequence[int], batch: int) -> bool:
        """Whether kernels compute the convolutions: all of them, and there are some."""
        return bool(self.convolutions) and all(
            conv is not None and (conv.fits(batch) or (_is_first(step) and conv.fits_patches(batch)))
            for conv, step in self.convolutions
        )

    def trials(
        self, _layout: Layout, _shape: Sequence[int], batch: int, device: torch.device
    ) -> list[Callable[[], object]]:
        """Each kernel once, for one agent, to be called in any order."""
        convolutions: dict[object, Callable[[], object]] = {}
        for step in self.steps:
            conv = conv_of(step)
            if conv is not None:
                biased = step.layer is not None and step.layer.bias is not None
                convolutions[conv, biased] = partial(_try_conv, conv, batch, biased, _is_first(step), device)
            elif step.kind == "norm" and _norm_fits(step):
                assert isinstance(step.layer, nn.GroupNorm)
                users = min(2, self.needed[step.node])
                form = (tuple(step.shapes[0]), step.layer.num_groups, len(step.inputs) > 1, step.relu, users)
                convolutions[form] = partial(_try_norm, step, batch, users, device)
        return list(convolutions.values())


def plan_traced(module: nn.Module, samples: Tensor) -> TracedStack | None:
    """The module as steps, tried on two samples that differ; None if it has to be vectorised unchanged."""
    steps = trace(module, samples)
    if steps is None:
        return None
    return TracedStack(steps, dict(module.named_buffers()))


class _Pass:
    """One evaluation."""

    def __init__(self, stack: TracedStack, params: dict[str, Tensor], inputs: Tensor) -> None:
        self.stack, self.params, self.inputs = stack, params, inputs
        self.agents, self.batch = inputs.shape[:2]
        self.fast = stack.kernels and by_kernels(inputs)
        self.values: dict[fx.Node, list[Value]] = {}  # once for each use that is still to come

    def run(self) -> Tensor:
        result = None
        for step in self.stack.steps:
            result = self._compute(step)
            count = self.stack.needed.get(step.node, 0)
            if isinstance(result, list):  # of a norm by its kernel, one for each use
                self.values[step.node] = result
            elif isinstance(result, Scaled) and count > 1 and torch.is_grad_enabled():
                self.values[step.node] = split(result, count)
            else:
                self.values[step.node] = [result] * count
        assert isinstance(result, Tensor)
        return self._apart(result)

    def _compute(self, step: Step) -> Value:
        match step.kind:
            case "input":
                return self.inputs.flatten(0, 1)
            case "constant":
                own = self.params.get(step.name)
                return self.stack.constant(step.name, self.inputs.device) if own is None else _Parameter(own)
            case "same":
                return self._take(step.inputs[0])
            case "output":
                return _plain(self._take(step.inputs[0]))
            case "layer":
                return self._layer(step)
            case "norm":
                return self._norm(step)
            case "add" | "relu":
                return self._sum(step)
        return self._call(step)

    def _take(self, node: fx.Node) -> Value:
        return self.values[node].pop()

    def _layer(self, step: Step) -> Value:
        assert step.layer is not None
        x, weight, bias = self._take(step.inputs[0]), self.params[f"{step.name}.weight"], self._bias(step)
        conv = conv_of(step) if self.fast else None
        if conv is not None and conv.fits(self.batch):
            return scaled_conv(conv, x if isinstance(x, Scaled) else to_scaled(self._apart(x)), weight, bias)
        if conv is not None and conv.fits_patches(self.batch) and isinstance(x, Tensor) and not x.requires_grad:
            return conv_of_patches(conv, self._apart(x), weight, bias)
        return compute(step.layer, _plain(x), weight, bias)

    def _norm(self, step: Step) -> Value:
        assert isinstance(step.layer, nn.GroupNorm)
        values = [self._take(node) for node in step.inputs]
        weight, bias = self.params[f"{step.name}.weight"], self._bias(step)
        assert bias is not None  # a group norm has both or neither
        if isinstance(values[0], Scaled) and _norm_fits(step):
            rest, users = values[1] if len(values) > 1 else None, self.stack.needed[step.node]
            rest = rest if rest is None or isinstance(rest, Scaled) else to_scaled(self._apart(rest))
            return scaled_norm(
                values[0], step.layer.num_groups, weight, bias, step.layer.eps, rest, relu=step.relu, users=users
            )
        y = compute(step.layer, _plain(values[0]), weight, bias)
        y = y if len(values) == 1 else y + _plain(values[1])
        return F.relu(y) if step.relu else y

    def _sum(self, step: Step) -> Value:
        values = [self._take(node) for node in step.inputs]
        relu = step.relu or step.kind == "relu"
        same = len(values) == 1 or step.shapes[0] == step.shapes[1]
        if same and all(isinstance(value, Scaled) for value in values):
            return total(values[0], values[1] if len(values) > 1 else None, relu=relu)
        plain = [_plain(value) for value in values]
        y = plain[0] if len(plain) == 1 else plain[0] + plain[1]
        return F.relu(y) if relu else y

    def _call(self, step: Step) -> Value:
        values = [_plain(self._take(node)) for node in step.inputs]
        if step.layer is not None:
            return step.layer(values[0])
        folded = any(isinstance(value, _Parameter) for value in values)
        if folded:
            values = [self._apart(value) if isinstance(value, Tensor) else value for value in values]
            like = next(value for value in values if isinstance(value, Tensor))
            values = [beside(v.value, like.flatten(0, 1)) if isinstance(v, _Parameter) else v for v in values]
        waiting = iter(values)
        args, kwargs = fx.node.map_arg((step.node.args, step.node.kwargs), lambda _: next(waiting))
        target = step.node.target
        if isinstance(target, str):
            return getattr(args[0], target)(*args[1:], **kwargs)
        result = target(*args, **kwargs)
        return result.flatten(0, 1) if folded else result

    def _bias(self, step: Step) -> Tensor | None:
        return self.params.get(f"{step.name}.bias")

    def _apart(self, x: Tensor) -> Tensor:
        return x.view(self.agents, self.batch, *x.shape[1:])


@dataclass(frozen=True)
class _Parameter:
    """A parameter that is used directly, [A, ...]."""

    value: Tensor


def _plain(value: Value) -> Value:
    return to_floats(value).flatten(0, 1) if isinstance(value, Scaled) else value


def conv_of(step: Step) -> Conv | None:
    """A convolution as the kernels see it; None if it is none, or of another form."""
    layer = step.layer
    if type(layer) is not nn.Conv2d or layer.groups != 1 or layer.dilation != (1, 1) or isinstance(layer.padding, str):
        return None
    (stride, other), (padding, beyond) = layer.stride, layer.padding
    if stride != other or padding != beyond:
        return None
    into, height, width = step.shapes[0]
    rows, columns = layer.kernel_size
    return Conv(height, width, into, layer.out_channels, rows, columns, stride, padding)


def _is_first(step: Step) -> bool:
    return step.inputs[0].op == "placeholder"


def _norm_fits(step: Step) -> bool:
    """Whether a norm is of images, with channels that fit and an addend of the same shape."""
    assert isinstance(step.layer, nn.GroupNorm)
    return len(step.shapes[0]) == 3 and norm_fits(step.layer.num_channels, step.layer.num_groups)


def _try_conv(conv: Conv, batch: int, biased: bool, first: bool, device: torch.device) -> None:
    w = torch.zeros(1, conv.out, conv.into, conv.rows, conv.columns, device=device, requires_grad=True)
    bias = torch.zeros(1, conv.out, device=device) if biased else None
    x = torch.zeros(1, batch, conv.into, conv.height, conv.width, device=device, requires_grad=not first)
    if conv.fits(batch):
        y = scaled_conv(conv, to_scaled(x), w, bias)
    elif first and conv.fits_patches(batch):
        y = conv_of_patches(conv, x, w, bias)
    else:
        return
    torch.autograd.grad(y, [w] if first else [w, x], list(map(torch.zeros_like, y)))


def _try_norm(step: Step, batch: int, users: int, device: torch.device) -> None:
    assert isinstance(step.layer, nn.GroupNorm)
    channels, height, width = step.shapes[0]
    y = to_scaled(torch.zeros(1, batch, channels, height, width, device=device, requires_grad=True))
    rest = y if len(step.inputs) > 1 else None
    gain = torch.zeros(1, channels, device=device, requires_grad=True)
    norms = scaled_norm(y, step.layer.num_groups, gain, gain, step.layer.eps, rest, relu=step.relu, users=users)
    parts = [part for z in norms for part in z]
    torch.autograd.grad(parts, gain, list(map(torch.zeros_like, parts)))
