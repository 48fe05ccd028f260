"""Gradient and fine-tuning of all agents' scores, each in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

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


def stepped_triton(
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
        gradient, weights, scores, before, moved, summed, _there(lr, scores), momentum, decay, gradient.stride(0), row,
        width, velocity is not None, _BLOCK,
    )  # fmt: skip
    return moved, summed


def fine_tuned_triton(scores: Tensor, gradient: Tensor, votes: Tensor, voters: Tensor, lr: float | Tensor) -> Tensor:
    """z − lr · (votes / voters · G): [A, P_w]."""
    from peermask.kernels.scores_triton import fine_tune_kernel

    scores, gradient, votes = scores.contiguous(), gradient.contiguous(), votes.contiguous()
    agents, width = scores.shape
    out = torch.empty_like(scores)
    grid = (-(-width // _BLOCK), agents)
    fine_tune_kernel[grid](scores, gradient, votes, voters.contiguous(), out, _there(lr, scores), width, _BLOCK)
    return out


def _there(number: float | Tensor, like: Tensor) -> Tensor:
    """On the device: a number that is passed to a kernel would be the same in every replay of a recorded round."""
    return number if isinstance(number, Tensor) else torch.full((), number, dtype=torch.float32, device=like.device)
