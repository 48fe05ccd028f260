"""A chain of convolution blocks as one differentiable step of fused kernels, for all agents.

Activations pass from block to block as scaled float16 (half_triton.py), gradients come back the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from peermask.compute.conv_block import BlockShape
from peermask.compute.conv_launch import (
    bias_gradient,
    convolved,
    halved_images,
    input_gradient,
    pooled,
    pooled_gradient,
    weight_gradient,
)


def run_trunk(
    shapes: tuple[BlockShape, ...], x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> Tensor:
    """x [A, B, H, W, C], weights [A, O, C, R, S] and biases [A, O] of each block -> [A, B, PH, PW, O] of the last."""
    result: Tensor = _Trunk.apply(shapes, x, *weights, *biases)  # type: ignore[no-untyped-call]
    return result


class _Trunk(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shapes: tuple[BlockShape, ...], x: Tensor, *parameters: Tensor | None) -> Tensor:
        weights, biases = parameters[: len(shapes)], parameters[len(shapes) :]
        agents, learning = len(x), any(ctx.needs_input_grad)
        # Of each block's activations, and how far they could reach at most.
        largest, reach = _zeros(2 * len(shapes), agents, x.device).split(len(shapes))
        bound = torch.linalg.vector_norm(x, ord=torch.inf, dim=(1, 2, 3, 4))  # [A] of the block's input
        x = halved_images(x, bound, shapes[0])
        saved: list[Tensor] = []
        for place, (shape, w, bias) in enumerate(zip(shapes, weights, biases, strict=True)):
            assert w is not None
            e = convolved(shape, x, bound, w, bias, largest[place], reach[place])
            y, where = pooled(shape, e, reach[place], largest[place], half=place + 1 < len(shapes), places=learning)
            if learning:  # an evaluation has no use for them, and images enough to fill the memory
                saved += [x, bound, w, e, reach[place], where]
            x, bound = y, largest[place]
        ctx.save_for_backward(*saved)
        ctx.shapes, ctx.biased = shapes, [bias is not None for bias in biases]
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        shapes: tuple[BlockShape, ...] = ctx.shapes
        saved = ctx.saved_tensors
        dy = gradients[0].contiguous()
        bound = torch.linalg.vector_norm(dy.flatten(1), ord=torch.inf, dim=1)  # [A] of dy
        largest = _zeros(len(shapes), len(dy), dy.device)
        weights: list[Tensor | None] = [None] * len(shapes)
        biases: list[Tensor | None] = [None] * len(shapes)
        for place in reversed(range(len(shapes))):
            shape = shapes[place]
            x, x_bound, w, e, reach, where = saved[6 * place : 6 * place + 6]
            de = pooled_gradient(shape, dy, bound, e, reach, where)  # [A, B, OH, OW, O] halves
            weights[place] = weight_gradient(shape, x, x_bound, de, bound)
            if ctx.biased[place]:
                biases[place] = bias_gradient(shape, de, bound)
            if place:
                dy = input_gradient(shape, de, bound, w, largest[place])
                bound = largest[place]
        return None, None, *weights, *biases


def trunk_trials(
    shapes: tuple[BlockShape, ...], x: Tensor, weights: Sequence[Tensor], biased: Sequence[bool]
) -> list[Callable[[], object]]:
    """Calls of every kernel once, to compile them side by side; [A, B, H, W, C] and [A, O, C, R, S] as in a run."""
    (agents, batch), device = x.shape[:2], x.device
    bound = torch.ones(agents, device=device)
    trials: list[Callable[[], object]] = [partial(halved_images, x, bound, shapes[0])]
    for place, (shape, w, bias) in enumerate(zip(shapes, weights, biased, strict=True)):
        margin = 2 * shape.margin
        sides = (shape.height + margin, shape.width + margin, shape.channels)
        inputs = torch.zeros(agents, batch, *sides, dtype=torch.float16, device=device)
        e = torch.zeros(agents, batch, *shape.convolved, shape.out, dtype=torch.float16, device=device)
        dy = torch.zeros(agents, batch, *shape.pooled, shape.out, device=device)
        where, de, half = dy.to(torch.uint8), e, place + 1 < len(shapes)
        added = torch.zeros(agents, shape.out, device=device) if bias else None
        trials += [
            partial(convolved, shape, inputs, bound, w, added, torch.zeros_like(bound), torch.zeros_like(bound)),
            *(partial(pooled, shape, e, bound, bound, half=half, places=places) for places in (True, False)),
            partial(pooled_gradient, shape, dy, bound, e, bound, where),
            partial(weight_gradient, shape, inputs, bound, de, bound),
        ]
        if bias:
            trials.append(partial(bias_gradient, shape, de, bound))
        if place:
            trials.append(partial(input_gradient, shape, de, bound, w, torch.zeros_like(bound)))
    return trials


def _zeros(rows: int, agents: int, device: torch.device) -> Tensor:
    """[rows, A], each row where a kernel compiled for aligned memory can take it."""
    return torch.zeros(rows, -(-agents // 4) * 4, device=device)[:, :agents]
