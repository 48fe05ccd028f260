"""Structured sparsity: the filter rule Fil, and the group lasso that drives whole filters to zero."""

from __future__ import annotations

import torch
from torch import Tensor

from peermask.models.layout import Layer, Layout


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
