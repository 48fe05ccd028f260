"""Images of all agents as scaled float16 ("halves"), which kernels pass to each other: half the bytes of float32.

float16 has 10 mantissa bits, as many as tensor cores use of a float32, but a small range, so each agent's
numbers are multiplied by a power of two (half_triton.py). Gradients are halves too, with their own scales, and go
through autograd in this way: **the gradient of a bound is the bound of the gradient**, and likewise of the largest.
Autograd would add gradients of different scales directly, so a value with two users is split first.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from peermask.compute.conv_block import is_power


class Scaled(NamedTuple):
    """Numbers half / scale(bound), channels last."""

    half: Tensor  # [A, B, H, W, C] float16, contiguous
    bound: Tensor  # [A] float32, no less than any number
    largest: Tensor  # [A] float32, of all numbers; less than the bound, which had to be known before they were


def scale_of(bound: Tensor) -> Tensor:
    """The power of two that scales numbers up to `bound` to below 2^14, as half_triton.half_scale."""
    exponent = ((bound.view(torch.int32) >> 23) - 127).clamp(-110, 127)
    return ((127 + 13 - exponent) << 23).view(torch.float32)


def to_scaled(x: Tensor) -> Scaled:
    """Convert floats [A, B, C, H, W]."""
    return Scaled(*_ToScaled.apply(x))  # type: ignore[no-untyped-call]


def to_floats(x: Scaled) -> Tensor:
    """Convert back to floats [A, B, C, H, W]."""
    result: Tensor = _ToFloats.apply(*x)  # type: ignore[no-untyped-call]
    return result


def split(x: Scaled, users: int) -> list[Scaled]:
    """The same numbers once for each user; their gradients are added with regard to scales."""
    parts = [x]
    while len(parts) < users:
        one, other = (Scaled(*each) for each in _pairs(_Split.apply(*parts.pop())))  # type: ignore[no-untyped-call]
        parts += [one, other]
    return parts


def total(x: Scaled, y: Scaled | None, *, relu: bool = False) -> Scaled:
    """x + y, or only x; then ReLU if `relu`."""
    return Scaled(*_Total.apply(relu, *x, *(y or ())))  # type: ignore[no-untyped-call]


def _pairs(parts: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return parts[:3], parts[3:]


def _halved(x: Tensor) -> Scaled:
    bound = torch.linalg.vector_norm(x, ord=torch.inf, dim=(1, 2, 3, 4))  # [A]
    half = (x.permute(0, 1, 3, 4, 2) * scale_of(bound).view(-1, 1, 1, 1, 1)).to(torch.float16)
    return Scaled(half.contiguous(), bound, bound.clone())


def _floats(half: Tensor, bound: Tensor) -> Tensor:
    return (half.float() / scale_of(bound).view(-1, 1, 1, 1, 1)).permute(0, 1, 4, 2, 3)


class _ToScaled(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(_halved(x))

    @staticmethod
    @once_differentiable
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return _floats(gradients[0], gradients[1])


class _ToFloats(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, half: Tensor, bound: Tensor, _largest: Tensor) -> Tensor:
        return _floats(half, bound)

    @staticmethod
    @once_differentiable
    def backward(_ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(_halved(gradients[0]))


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, half: Tensor, bound: Tensor, largest: Tensor) -> tuple[Tensor, ...]:
        own = (half.view_as(half), bound.view_as(bound), largest.view_as(largest))
        return *own, *(part.view_as(part) for part in own)

    @staticmethod
    @once_differentiable
    def backward(_ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        one, other = _pairs(gradients)
        return tuple(_sum(Scaled(*one), Scaled(*other), relu=False))


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, relu: bool, *parts: Tensor) -> tuple[Tensor, ...]:
        x, y = Scaled(*parts[:3]), Scaled(*parts[3:]) if len(parts) > 3 else None
        z = _sum(x, y, relu=relu)
        ctx.both = y is not None
        if relu:
            ctx.save_for_backward(z.half)
        return tuple(z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        half, bound, largest = gradients
        if ctx.saved_tensors:
            half = torch.where(ctx.saved_tensors[0] != 0, half, 0.0)
        own = (half, bound, largest)
        return None, *own, *(own if ctx.both else ())


def _sum(x: Scaled, y: Scaled | None, *, relu: bool) -> Scaled:
    from peermask.kernels.scaled_norm_triton import sum_kernel

    half, agents = torch.empty_like(x.half), len(x.half)
    bound, largest = zeros(2, agents, half.device)
    entries, block = half[0].numel(), 2048
    other = y or x
    sum_kernel[(-(-entries // block), agents)](
        *x, *other, half, bound, largest.view(torch.int32), entries, relu, y is not None, block
    )
    return Scaled(half, bound, largest)


def zeros(rows: int, agents: int, device: torch.device) -> Tensor:
    """[rows, A], each row where a kernel compiled for aligned memory can take it."""
    return torch.zeros(rows, -(-agents // 4) * 4, device=device)[:, :agents]


# Group norm

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
