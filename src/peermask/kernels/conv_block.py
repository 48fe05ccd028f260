"""Convolution, activation, local response norm and max-pooling as one step, for all agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

Activation = Literal["none", "elu", "relu"]


@dataclass(frozen=True)
class ConvBlock:
    """max-pool(norm(activation(x * w + bias))) of x [A, B, H, W, C], w [A, O, C, R, S], bias [A, O].

    Called, it computes this by torch's own operations, agents as groups of one convolution: the kernels' reference.
    """

    padding: int
    activation: Activation
    norm_scale: float | None  # α / 4 of a window of four channels; None for no norm
    pool: int
    pool_stride: int
    pool_padding: int

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:  # -> [A, B, PH, PW, O]
        agents, batch, height, width, _ = x.shape
        grouped = x.permute(1, 0, 4, 2, 3).reshape(batch, -1, height, width)  # [B, A * C, H, W]
        each = None if bias is None else bias.flatten()
        y = F.conv2d(grouped, w.flatten(0, 1), each, padding=self.padding, groups=agents)
        if self.activation != "none":
            y = F.elu(y) if self.activation == "elu" else F.relu(y)
        y = y.view(batch, agents, -1, *y.shape[2:])  # [B, A, O, OH, OW]
        if self.norm_scale is not None:
            y = F.local_response_norm(y.flatten(0, 1), 4, alpha=4 * self.norm_scale).view_as(y)
        y = F.max_pool2d(y.flatten(1, 2), self.pool, self.pool_stride, self.pool_padding)
        return y.view(batch, agents, -1, *y.shape[2:]).permute(1, 0, 3, 4, 2)  # [A, B, PH, PW, O]

    def convolved(self, side: int, taps: int) -> int:
        """Pixels along one side of what the convolution gives."""
        return side + 2 * self.padding - taps + 1

    def pooled(self, side: int) -> int:
        """Pixels along one side of what pooling makes of them."""
        return (side + 2 * self.pool_padding - self.pool) // self.pool_stride + 1

    @property
    def cover(self) -> int:
        """How many windows a pixel lies in at most, along one side."""
        return -(-self.pool // self.pool_stride)

    @property
    def growth(self) -> int:
        """How many times the largest gradient of the result bounds that of the convolution.

        A pixel hears from cover² windows. The norm passes on less than four times that: through channel c's own u,
        which is at least 1 + α/4 e_c², a factor between -1/2 and 1; through the u of each of three others that it takes
        part in, 3/2 · α/4 · e_c e_j / u with u >= 1 + α/4 (e_c² + e_j²), so at most 3/4.
        """
        return self.cover**2 * (1 if self.norm_scale is None else 4)
