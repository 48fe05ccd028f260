"""Group norm of scaled float16, with an addition and ReLU, as one differentiable step for all agents."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from peermask.kernels.conv_block import is_power
from peermask.kernels.scaled import Scaled, split, zeros

_TILE = 2048  # numbers that a program has at once
_WARPS = 8
_STAGES = 1


def norm_fits(channels: int, groups: int) -> bool:
    """Whether the kernels can do it: a program has all channels of a pixel."""
    return is_power(channels) and 16 <= channels <= 2048 and channels % groups == 0


def scaled_norm(
    y: Scaled,
    groups: int,
    gain: Tensor,
    shift: Tensor,
    eps: float,
    rest: Scaled | None,
    *,
    relu: bool,
    users: int = 1,
) -> list[Scaled]:
    """relu(group_norm(y) + rest), gain and shift [A, C]; once for each user, whose gradients are added."""
    options = (groups, eps, relu, users > 1)
    parts = _Norm.apply(options, *y, gain, shift, *(rest or ()))  # type: ignore[no-untyped-call]
    if users <= 1:
        return [Scaled(*parts)]
    return [Scaled(*parts[:3]), *split(Scaled(*parts[3:]), users - 1)]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        options: tuple[int, float, bool, bool],
        y: Tensor,
        y_bound: Tensor,
        y_largest: Tensor,
        gain: Tensor,
        shift: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        from peermask.kernels.scaled_norm_triton import norm_kernel

        groups, eps, relu, two = options
        agents, batch, height, width, channels = y.shape
        gain, shift = gain.contiguous(), shift.contiguous()
        z = torch.empty_like(y)
        bound, largest, steepest = zeros(3, agents, y.device)
        mean, slope = torch.empty(2, agents, batch, channels, device=y.device)
        added = rest or (y, y_bound, y_largest)
        norm_kernel[(batch, agents)](
            y, y_bound, *added, gain, shift, z, bound, _bits(largest), mean, slope, _bits(steepest),
            batch, eps, _reach(y, groups), height * width, channels, groups, bool(rest), relu,
            _pixels(height * width, channels), _STAGES, num_warps=_WARPS,
        )  # fmt: skip
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(y, y_bound, z if rest else y, mean, slope, steepest, gain, shift)
        ctx.options, ctx.both = options, bool(rest)
        own = (z, bound, largest)
        return (*own, *(part.view_as(part) for part in own)) if two else own

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from peermask.kernels.scaled_norm_triton import norm_backward_kernel

        groups, _, relu, two = ctx.options
        y, y_bound, z, mean, slope, steepest, gain, shift = ctx.saved_tensors
        dz, more = gradients[:3], gradients[-3:]
        agents, batch, height, width, channels = y.shape
        dy = torch.empty_like(y)
        bound, largest, rest_bound = zeros(3, agents, y.device)
        sums = torch.empty(agents, batch, 2, channels, device=y.device)
        # What is added gets what ReLU lets pass, or the sum; else dz as it is.
        apart = ctx.both and (relu or two)
        passed = torch.empty_like(y) if apart else dz[0]
        norm_backward_kernel[(batch, agents)](
            *dz, *more, y, y_bound, z, mean, slope, steepest, gain, shift, dy, bound, _bits(largest), passed,
            rest_bound, sums, batch, _reach(y, groups), height * width, channels, groups, two, apart, relu,
            _pixels(height * width, channels), _STAGES, num_warps=_WARPS,
        )  # fmt: skip
        shifts, gains = sums.sum(1).unbind(1)  # [A, C] each
        rest: tuple[Tensor, ...] = ()
        if ctx.both:
            rest = (passed, rest_bound if apart else dz[1], rest_bound if two else dz[2])
        return None, dy, bound, largest, gains, shifts, *rest


def _reach(y: Tensor, groups: int) -> float:
    """No normalised number is larger: the squares of a group sum to how many it has, at most."""
    return sqrt(y.shape[2] * y.shape[3] * y.shape[4] // groups)


def _pixels(pixels: int, channels: int) -> int:
    most = max(1, _TILE // channels)
    return min(most, 1 << (pixels - 1).bit_length())


def _bits(x: Tensor) -> Tensor:
    return x.view(torch.int32)
