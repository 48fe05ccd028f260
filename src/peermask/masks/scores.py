"""Real-valued scores z: first values, gradients through a mask that has none, and structured sparsity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from peermask.kernels import as_tensor, by_kernels
from peermask.kernels.blocks import BLOCK, SUMS, layer_tables
from peermask.models.layout import Layer, Layout
from peermask.streams import stream


def filter_rule(mask: Tensor, layer: Layer, threshold: int | float) -> Tensor:
    """Fil[m]: a filter that keeps no more than `threshold` entries loses them all.   Paper Eq. (10)

    A threshold below 1 is a fraction of the filter's size: 20 entries are a quarter of a 5x5x3 filter and an
    80th of a 5x5x64 one, so a count alone empties the first layer long before it touches the others.
    """
    if threshold == 0:
        return mask
    by_filter: Tensor = mask.unflatten(-1, (layer.filters, -1))  # [A, n] -> [A, O, F]
    limit = threshold * by_filter.shape[-1] if threshold < 1 else threshold
    alive = by_filter.sum(-1, keepdim=True) > limit  # [A, O, 1]
    return (by_filter & alive).flatten(-2)  # [A, n]


def filter_means(magnitude: Tensor, layout: Layout) -> Tensor:
    """Give every entry of a convolution the mean magnitude of its filter, so that filters are ranked: [A, P_w]."""
    means = magnitude.clone()
    for layer in (layer for layer in layout.masked if layer.kind == "conv"):
        by_filter = magnitude[:, layer.span].unflatten(-1, (layer.filters, -1))  # [A, O, F]
        means[:, layer.span] = by_filter.mean(-1, keepdim=True).expand_as(by_filter).flatten(-2)
    return means


def group_lasso_gradient(scores: Tensor, layout: Layout) -> Tensor:
    """∂R/∂z / λ = z_{l,o} / ||z_{l,o}||_2 of R(z) = λ Σ_l Σ_o ||z_{l,o}||_2, and 0 for a filter that is all zero.

    Paper Eq. (5)-(7)
    """
    gradient = torch.empty_like(scores)  # [A, P_w]
    for layer in layout.masked:
        groups = scores[:, layer.span].unflatten(-1, (layer.filters, -1))  # [A, O, F]
        norm = groups.norm(dim=-1, keepdim=True)
        gradient[:, layer.span] = (groups / norm.masked_fill(norm == 0, 1.0)).flatten(-2)
    return gradient


ScoreInit = Literal["shared", "independent"]

SMALLEST = 1e-12  # root mean square of a gradient that is divided by


def initial_scores(
    layout: Layout, init: ScoreInit, ids: Sequence[int], seed: int, given: Mapping[str, Tensor] | None = None
) -> Tensor:
    """z ~ U(±1/sqrt(fan_in)) layer by layer: one draw for all agents, or one for each.

    Where they are to share them, the scores of layers whose weights w are `given` begin as |w|.
    """
    rows = {agent: _draw(layout, seed, agent) for agent in (set(ids) if init == "independent" else {0})}
    if init == "shared" and given:
        for layer in layout.masked:
            if layer.name in given:
                rows[0][layer.span] = given[layer.name].abs().flatten().cpu()
    return torch.stack([rows[agent if init == "independent" else 0] for agent in ids])  # [A, P_w]


def _draw(layout: Layout, seed: int, agent: int) -> Tensor:
    parts = [
        (2.0 * stream(seed, f"scores/{layer.name}", agent).uniform(layer.size) - 1.0) / sqrt(layer.fan_in)
        for layer in layout.masked
    ]
    return torch.from_numpy(np.concatenate(parts).astype(np.float32))  # [P_w]


def score_gradient(model_gradient: Tensor, weights: Tensor, scores: Tensor) -> Tensor:
    """G(z) = ∂f/∂v · ∂v/∂m · sign(z) = ∂f/∂v ⊙ w ⊙ sign(z), kept entry or not.   Paper Eq. (4), (15)

    The straight-through estimator: threshold and filter rule count as the identity, so what is left of
    ∂m/∂z is the derivative of the absolute value.
    """
    if by_kernels(scores):
        return score_gradient_triton(model_gradient, weights, scores)
    return scores.sign().mul_(weights).mul_(model_gradient)  # [A, P_w]


def step_scores(
    scores: Tensor,
    model_gradient: Tensor,
    weights: Tensor,
    velocity: Tensor | None,
    lr: float | Tensor,
    momentum: float,
    decay: float,
    lasso: float,
    layout: Layout,
    *,
    relative: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """z½ = z − η (û + ω z + λ ∂R/∂z), u ← β u + G, and û: u itself, or in units of the scores. [A, P_w] each.

    u is G itself without momentum.
    """
    if by_kernels(scores) and not lasso:
        if relative:
            sizes = layout.sizes
            return relative_step_triton(scores, model_gradient, weights, velocity, lr, momentum, decay, sizes)
        moved, summed = step_scores_triton(scores, model_gradient, weights, velocity, lr, momentum, decay)
        return moved, summed, summed
    summed = score_gradient(model_gradient, weights, scores)
    if velocity is not None:
        summed = momentum * velocity + summed
    direction = scale_to_scores(scores, summed, layout) if relative else summed
    step = regularise(direction, scores, decay, lasso, layout)
    if scores.device.type != "cpu":  # where nothing waits for a number that varies
        return scores - lr * step, summed, direction
    return torch.sub(scores, step, alpha=float(lr)), summed, direction


def scale_to_scores(scores: Tensor, summed: Tensor, layout: Layout) -> Tensor:
    """û_l = u_l mean|z_l| / rms(u_l), the mean and the root mean square over all entries of an agent's layer."""
    direction = torch.empty_like(summed)  # [A, P_w]
    for layer in layout.masked:
        u, z = summed[:, layer.span], scores[:, layer.span]
        rms = torch.linalg.vector_norm(u, dim=1, keepdim=True) / sqrt(layer.size)  # [A, 1]
        torch.mul(u, z.abs().mean(dim=1, keepdim=True) / rms.clamp(min=SMALLEST), out=direction[:, layer.span])
    return direction


def regularise(gradient: Tensor, scores: Tensor, decay: float, lasso: float, layout: Layout) -> Tensor:
    """G + ω z + λ ∂R/∂z: what a step on the scores follows."""
    if decay:
        gradient = gradient + decay * scores
    if lasso:
        gradient = gradient + lasso * group_lasso_gradient(scores, layout)
    return gradient  # [A, P_w]


def keep_sign(scores: Tensor, before: Tensor) -> Tensor:
    """Stop at zero what a step would carry across it.

    Past zero a score grows again on the other side, so an entry on its way out would come back as one of the
    largest.
    """
    return torch.where(scores * before < 0, torch.zeros_like(scores), scores)


# On a GPU, by kernels

_BLOCK = 2048


def score_gradient_triton(model_gradient: Tensor, weights: Tensor, scores: Tensor) -> Tensor:
    """sign(z) · w · g, multiplied in this order: [A, P_w], weights [P_w] or [A, P_w]."""
    from peermask.kernels.scores_triton import gradient_kernel

    scores, weights = scores.contiguous(), weights.contiguous()
    # A slice of all parameters' gradient: rows that lie apart.
    gradient = model_gradient if model_gradient.stride(1) == 1 else model_gradient.contiguous()
    agents, width = scores.shape
    out = torch.empty_like(scores)
    row = 0 if weights.dim() == 1 else width
    grid = (-(-width // _BLOCK), agents)
    gradient_kernel[grid](gradient, weights, scores, out, gradient.stride(0), row, width, _BLOCK)
    return out


def step_scores_triton(
    scores: Tensor,
    model_gradient: Tensor,
    weights: Tensor,
    velocity: Tensor | None,
    lr: float | Tensor,
    momentum: float,
    decay: float,
) -> tuple[Tensor, Tensor]:
    """z − lr · (u + decay · z) and u = momentum · velocity + sign(z) · w · g in one pass.

    Without a velocity u is the last term alone.
    """
    from peermask.kernels.scores_triton import step_kernel

    scores, weights = scores.contiguous(), weights.contiguous()
    gradient = model_gradient if model_gradient.stride(1) == 1 else model_gradient.contiguous()
    before = scores if velocity is None else velocity.contiguous()  # not read where there is none
    agents, width = scores.shape
    moved, summed = torch.empty_like(scores), torch.empty_like(scores)
    row = 0 if weights.dim() == 1 else width
    grid = (-(-width // _BLOCK), agents)
    step_kernel[grid](
        gradient, weights, scores, before, moved, summed, as_tensor(lr, scores), momentum, decay, gradient.stride(0),
        row, width, velocity is not None, _BLOCK,
    )  # fmt: skip
    return moved, summed


def relative_step_triton(
    scores: Tensor,
    model_gradient: Tensor,
    weights: Tensor,
    velocity: Tensor | None,
    lr: float | Tensor,
    momentum: float,
    decay: float,
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """z − lr · (û + decay · z), u and û of `step_scores`, in two passes: sums over layers come before the step."""
    from peermask.kernels.scores_triton import relative_step_kernel, sums_of_step_kernel

    tables, scores, weights = layer_tables(tuple(sizes), scores.device), scores.contiguous(), weights.contiguous()
    gradient = model_gradient if model_gradient.stride(1) == 1 else model_gradient.contiguous()
    before = scores if velocity is None else velocity.contiguous()  # not read where there is none
    (agents, width), count = scores.shape, len(tables.blocks)
    moved, summed, direction = (torch.empty_like(scores) for _ in range(3))
    sums, squares = (torch.empty(agents, count, device=scores.device) for _ in range(2))
    row = 0 if weights.dim() == 1 else width
    sums_of_step_kernel[(count, agents)](
        gradient, weights, scores, before, summed, sums, squares, tables.blocks, momentum, gradient.stride(0), row,
        width, count, velocity is not None, tables.in_lines, BLOCK, num_warps=8,
    )  # fmt: skip
    relative_step_kernel[(count, agents)](
        scores, summed, sums, squares, tables.blocks, tables.firsts, tables.sizes, moved, direction,
        as_tensor(lr, scores), decay, SMALLEST, width, count, tables.in_lines, BLOCK, SUMS, num_warps=8,
    )  # fmt: skip
    return moved, summed, direction
