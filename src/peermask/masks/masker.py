"""M_i: the retention ratio r_i to exact counts K_l, real scores to an agent's binary mask, and the mask to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from peermask.errors import ConfigError
from peermask.kernels import by_kernels
from peermask.masks.scores import ScoreInit, filter_means, filter_rule, initial_scores
from peermask.masks.select import top_fraction_by_layer
from peermask.models.layout import Layer, Layout
from peermask.registry import Options
from peermask.streams import raw_of_each, uniform_of

Ratio = Annotated[float, Field(gt=0, le=1)]


class MaskOptions(Options):
    """Coverage of masks, the same for every method of a comparison."""

    fc_keep: Ratio | Literal["r"] = Field(0.9, description="share kept in linear layers; 'r' for the agent's own")
    filter_threshold: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Fil: a filter with no more entries than this is removed; below 1, a share of the filter"
    )
    ranking: Literal["entry", "filter"] = Field(
        "entry",
        description="keep a layer's largest entries, as the paper, or a convolution's filters with the largest sums",
    )
    rescale: bool = Field(False, description="multiply kept weights by 1/sqrt(share kept)")
    layers: tuple[str, ...] = Field(("*",), description="patterns of the layer names that are masked", min_length=1)


class RetentionDraw(Options):
    """Retention ratios drawn for each agent from a list."""

    choices: tuple[Ratio, ...] = Field(min_length=1, description="numbers in (0, 1]")
    weights: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        None, description="how often each is drawn, as many as choices; default: equally often"
    )

    @model_validator(mode="after")
    def weights_match(self) -> RetentionDraw:
        if self.weights is not None and len(self.weights) != len(self.choices):
            raise ValueError(f"{len(self.weights)} weights for {len(self.choices)} choices")
        return self


def _retention(value: object) -> object:
    """Errors by what was probably meant: a number, a list, or a table."""
    match value:
        case RetentionDraw() | Mapping():
            return value
        case list() | tuple():
            for agent, ratio in enumerate(value):
                if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
                    raise ValueError(f"agent {agent} has {ratio!r}; every retention must be in (0, 1]")
            return tuple(map(float, value))
        case int() | float() if not isinstance(value, bool):
            if not 0 < value <= 1:
                raise ValueError("must be in (0, 1]: the share of weights an agent keeps")
            return float(value)
    raise ValueError("must be a number in (0, 1], a list of them, or {choices = [...]}")


Retention = Annotated[Ratio | tuple[Ratio, ...] | RetentionDraw, BeforeValidator(_retention)]


def retentions(retention: Retention, agents: int, seed: int) -> tuple[float, ...]:
    """r_i of every agent, from one value, a list, or a draw."""
    if isinstance(retention, float):
        return (retention,) * agents
    if isinstance(retention, tuple):
        if len(retention) != agents:
            raise ConfigError(f"retention: {len(retention)} values for {agents} agents; give one, or one per agent")
        return retention
    weights = retention.weights or (1.0,) * len(retention.choices)
    edges = torch.tensor(weights, dtype=torch.float64).cumsum(0) / sum(weights)
    drawn = raw_of_each(seed, "retention", range(agents), 0, 0, [1] * agents)
    draws = uniform_of(np.concatenate(list(drawn)))
    return tuple(retention.choices[place] for place in torch.searchsorted(edges, torch.from_numpy(draws), right=True))


def share_kept(layer: Layer, retention: float, options: MaskOptions) -> float:
    """k_l: r_i in convolutions, `fc_keep` in linear layers (the authors' code keeps 0.9 there, the paper r_i)."""
    if layer.kind == "linear" and options.fc_keep != "r":
        return options.fc_keep
    return retention


def kept_counts(layout: Layout, retentions: Sequence[float], options: MaskOptions) -> Tensor:
    """K_l = max(1, round(k_l n_l)).

    Not n - int((1 - k) n) as released: in floats that keeps 1729 of 1920 at k = 0.9, not 1728.
    """
    counts = [
        [max(1, round(share_kept(layer, r, options) * layer.size)) for layer in layout.masked] for r in retentions
    ]
    return torch.tensor(counts, dtype=torch.int64)  # [A, L]


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
