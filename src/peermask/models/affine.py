"""A batch norm whose averages are fixed: a factor and a summand for each channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ChannelAffine(nn.Module):
    """x_c · weight_c + bias_c."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, ...]
        aside = (1,) * (x.dim() - 2)
        return torch.addcmul(self.bias.view(-1, *aside), x, self.weight.view(-1, *aside))
