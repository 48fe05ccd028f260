"""Every agent's masked model in one pass."""

from __future__ import annotations

from torch import Tensor

_BLOCK = 2048


def masked_model_triton(mask: Tensor, weights: Tensor, frozen: Tensor) -> Tensor:
    """w ⊙ m, then the end of `frozen` [P] as it is: mask [A, P_w], weights [P_w] or [A, P_w] -> [A, P]."""
    from peermask.kernels.masked_triton import masked_model_kernel

    mask, weights, frozen = mask.contiguous(), weights.contiguous(), frozen.contiguous()
    (agents, masked), width = mask.shape, len(frozen)
    params = frozen.new_empty(agents, width)
    row = 0 if weights.dim() == 1 else masked
    grid = (-(-width // _BLOCK), agents)
    masked_model_kernel[grid](mask, weights, frozen, params, row, masked, width, _BLOCK)
    return params
