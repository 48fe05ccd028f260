"""What the convolution kernels can do, told from sizes alone."""

from __future__ import annotations

import pytest

from peermask.compute.conv_block import ConvBlock, shapes_of, trunk_fits
from peermask.compute.network import build_network
from peermask.models.architectures import alexnet, cnn, mlp


@pytest.mark.parametrize(
    ("batch", "kernel", "pool", "fits"),
    [
        (7, (5, 5), 2, True),
        (7, (5, 3), 2, False),
        (7, (5, 5), 15, True),
        (7, (5, 5), 16, False),
        (2**18, (5, 5), 2, False),
    ],
)
def test_what_the_kernels_cannot_count_is_left_to_the_reference(
    batch: int, kernel: tuple[int, int], pool: int, fits: bool
) -> None:
    shapes = shapes_of([ConvBlock(2, "relu", None, pool, pool, 0)], 16, 16, [(64, 32, *kernel)])
    assert trunk_fits(shapes, batch) == fits


@pytest.mark.parametrize(
    ("model", "shape", "batch", "fits"),
    [
        (alexnet((3, 32, 32), 10), (3, 32, 32), 128, True),
        (cnn((1, 28, 28), 10), (1, 28, 28), 64, True),
        (cnn((1, 28, 28), 10, channels=(24, 64)), (1, 28, 28), 64, False),
        (cnn((3, 32, 32), 10, channels=(256,)), (3, 32, 32), 64, False),
        (alexnet((3, 32, 32), 10), (3, 32, 32), 2**16, False),
        (mlp((1, 28, 28), 10), (1, 28, 28), 64, True),
    ],
)
def test_a_network_fits_or_takes_the_way_of_the_reference(model, shape, batch, fits) -> None:  # type: ignore[no-untyped-def]
    network = build_network(model, shape, 10)
    assert network.stack is not None
    assert network.stack.fits_kernels(network.layout, shape, batch) == fits
