"""Convolution, activation, local response norm and max-pooling as one step, for all agents; the sizes it meets, and
which of them the kernels can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

Activation = Literal["none", "elu", "relu"]

_PATCH = 128  # the longest patch that a first layer takes in one piece
MOST_ENTRIES = 2**31  # of an agent's batch in one layer: places are counted in 32 bits
_LARGEST_POOL = 15  # a place in a window is one byte, and 255 stands for none


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
        """Pixels along one side of the convolution's output."""
        return side + 2 * self.padding - taps + 1

    def pooled(self, side: int) -> int:
        """Pixels along one side of the pooled output."""
        return (side + 2 * self.pool_padding - self.pool) // self.pool_stride + 1

    @property
    def cover(self) -> int:
        """Count the windows that a pixel lies in at most, along one side."""
        return -(-self.pool // self.pool_stride)

    @property
    def growth(self) -> int:
        """Bound the convolution's gradient, in times of the largest gradient of the result.

        A pixel hears from cover² windows. The norm passes on less than four times that: through channel c's own u,
        which is at least 1 + α/4 e_c², a factor between -1/2 and 1; through the u of each of three others that it takes
        part in, 3/2 · α/4 · e_c e_j / u with u >= 1 + α/4 (e_c² + e_j²), so at most 3/4.
        """
        return self.cover**2 * (1 if self.norm_scale is None else 4)


@dataclass(frozen=True)
class BlockShape:
    """A block and the sizes that it meets."""

    block: ConvBlock
    height: int
    width: int
    into: int
    out: int
    rows: int
    columns: int

    @cached_property
    def convolved(self) -> tuple[int, int]:
        return self.block.convolved(self.height, self.rows), self.block.convolved(self.width, self.columns)

    @cached_property
    def pooled(self) -> tuple[int, int]:
        height, width = self.convolved
        return self.block.pooled(height), self.block.pooled(width)

    @property
    def by_patches(self) -> bool:
        """Few channels, as images have: a whole patch fits into one step of the product."""
        return self.into % 32 != 0

    @property
    def channels(self) -> int:
        """Channels as they are stored: those of images up to a power of two, so that pixels can be read whole."""
        return power_from(self.into) if self.by_patches else self.into

    @property
    def margin(self) -> int:
        """Pixels of zeros that are stored around an image: patches are read without asking where it ends."""
        return self.block.padding if self.by_patches else 0

    @property
    def patch(self) -> int:
        """Entries of a patch, up to a power of two."""
        return power_from(self.rows * self.columns * self.channels, 16)

    def fits(self, batch: int, *, first: bool) -> bool:
        """Whether the kernels can do it: channels that fill a tile, and numbers they can count to."""
        square = self.rows == self.columns  # the gradient of the input is padded alike both ways
        patches = first and self.patch <= _PATCH and self.out <= 128
        inner = not self.by_patches and self.out % 32 == 0 and square
        tiled = is_power(self.out) and 16 <= self.out <= 1024 and (patches if self.by_patches else inner)
        padding = 2 * self.block.padding
        entries = batch * (self.height + padding) * (self.width + padding) * max(self.channels, self.out)
        return tiled and entries < MOST_ENTRIES and self.block.pool <= _LARGEST_POOL and min(self.pooled) > 0


def shapes_of(
    blocks: Sequence[ConvBlock], height: int, width: int, kernels: Iterable[Sequence[int]]
) -> tuple[BlockShape, ...]:
    """Find the sizes that images meet in all blocks, with kernels [O, C, R, S]."""
    shapes = []
    for block, (out, into, rows, columns) in zip(blocks, kernels, strict=True):
        shapes.append(BlockShape(block, height, width, into, out, rows, columns))
        height, width = shapes[-1].pooled
    return tuple(shapes)


def trunk_fits(shapes: Sequence[BlockShape], batch: int) -> bool:
    """Whether the kernels can compute the whole chain, where there is a GPU."""
    return all(shape.fits(batch, first=place == 0) for place, shape in enumerate(shapes))


def fills_tiles(batch: int, tile: int) -> bool:
    """Whether tiles of images, each for one pixel, are nearly full. Such a tile skips the padding."""
    return -(-batch // tile) * tile <= 1.1 * batch


def power_from(number: int, least: int = 1) -> int:
    """The smallest power of two that is no less than either."""
    return max(least, 1 << (number - 1).bit_length())


def is_power(number: int) -> bool:
    return number & (number - 1) == 0
