"""M_i: real scores to an agent's binary mask, and the mask to a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from peermask.kernels import by_kernels
from peermask.masks.budget import MaskOptions
from peermask.masks.scores import ScoreInit, filter_means, filter_rule, initial_scores
from peermask.masks.select import top_fraction_by_layer
from peermask.models.layout import Layout


@dataclass(frozen=True)
class Masker:
    """Everything about masks that all agents share; what differs (how much each keeps) is an argument."""

    layout: Layout
    frozen: Tensor  # [P]: w, then what is never masked
    options: MaskOptions
    given: frozenset[str] = frozenset()  # layers whose frozen weights were given, not drawn

    def initial_scores(self, init: ScoreInit, ids: Sequence[int], seed: int) -> Tensor:
        """[A, P_w] on the CPU: drawn, or |w| where weights were given and agents share their first scores."""
        views = self.layout.unflatten(self.frozen)
        return initial_scores(self.layout, init, ids, seed, {name: views[name] for name in self.given})

    @cached_property
    def _sizes(self) -> Tensor:
        """[L], on the device: building it in every round would make a GPU wait."""
        return torch.tensor(self.layout.sizes, device=self.frozen.device)

    def mask(self, scores: Tensor, keep: Tensor) -> Tensor:
        """m_{i,l} = Fil[Thres(|y_{i,l}|)], layer by layer.   Paper Eq. (10), (12)"""
        return self.select(scores.abs(), keep)

    def select(self, magnitude: Tensor, keep: Tensor) -> Tensor:
        """Return the mask of a magnitude |y|."""
        if self.options.ranking == "filter":
            magnitude = filter_means(magnitude, self.layout)
        mask = top_fraction_by_layer(magnitude, keep, self.layout.sizes)  # [A, P_w]
        if self.options.filter_threshold:
            for layer in self.layout.masked:
                mask[:, layer.span] = filter_rule(mask[:, layer.span], layer, self.options.filter_threshold)
        return mask

    def counts(self, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the most entries of each layer in a mask of `mask`: K_l, or fewer with the filter rule."""
        return torch.zeros_like(keep) if self.options.filter_threshold else keep, keep  # [A, L] each

    def weights(self, keep: Tensor) -> Tensor:
        """w, or w / sqrt(K_l / n_l) for each agent if rescaling is on."""
        weights = self.frozen[: self.layout.weights]  # [P_w]
        if not self.options.rescale:
            return weights
        sizes = self._sizes
        scale = (sizes / keep).sqrt().to(weights.dtype)  # [A, L]
        return weights * scale.repeat_interleave(sizes, dim=1, output_size=self.layout.weights)  # [A, P_w]

    def model(self, mask: Tensor, keep: Tensor) -> Tensor:
        """v_i = w ⊙ m_i, then biases and norms unchanged: a whole parameter vector.   Paper Eq. (13)"""
        if by_kernels(mask):
            return masked_model_triton(mask, self.weights(keep), self.frozen)
        weights = self.layout.weights
        params = self.frozen.new_empty(len(mask), self.layout.total)  # [A, P]
        params[:, weights:] = self.frozen[weights:]
        # As bytes: a CPU turns them into floats eight times faster than bools.
        params[:, :weights].copy_(mask.view(torch.uint8)).mul_(self.weights(keep))
        return params


# On a GPU, by kernels

_BLOCK = 2048


def masked_model_triton(mask: Tensor, weights: Tensor, frozen: Tensor) -> Tensor:
    """w ⊙ m, then the rest of `frozen` [P]: mask [A, P_w], weights [P_w] or [A, P_w] -> [A, P]."""
    from peermask.kernels.select_triton import masked_model_kernel

    mask, weights, frozen = mask.contiguous(), weights.contiguous(), frozen.contiguous()
    (agents, masked), width = mask.shape, len(frozen)
    params = frozen.new_empty(agents, width)
    row = 0 if weights.dim() == 1 else masked
    grid = (-(-width // _BLOCK), agents)
    masked_model_kernel[grid](mask, weights, frozen, params, row, masked, width, _BLOCK)
    return params
