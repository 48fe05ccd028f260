"""A trunk by its kernels beside the same by torch's own operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peermask.compute.conv_block import ConvBlock, shapes_of, trunk_fits
from peermask.compute.conv_trunk import run_trunk


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().norm() / b.detach().norm())


def from_reference(
    blocks: Sequence[ConvBlock],
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    gradient_size: float = 1.0,
) -> list[float]:
    """How far the result, and the gradients of weights and biases, lie from the reference's."""
    shapes = shapes_of(blocks, x.shape[2], x.shape[3], [w.shape[1:] for w in weights])
    assert trunk_fits(shapes, x.shape[1])
    results = []
    for fused in (True, False):
        w = [weight.clone().requires_grad_() for weight in weights]
        b = [None if bias is None else bias.clone().requires_grad_() for bias in biases]
        y = run_trunk(shapes, x, w, b) if fused else x
        if not fused:
            for block, weight, bias in zip(blocks, w, b, strict=True):
                y = block(y, weight, bias)
        generator = torch.Generator(x.device).manual_seed(1)
        sent = gradient_size * torch.randn(y.shape, device=x.device, generator=generator)
        results.append([y, *torch.autograd.grad(y, [*w, *(bias for bias in b if bias is not None)], sent)])
    return [apart(own, reference) for own, reference in zip(*results, strict=True)]
