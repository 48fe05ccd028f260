"""An image file as the pixels a model takes."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from peermask.data.image_files import read_pixels
from peermask.errors import DataError, ExportError


def read_image(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """[C, H, W] float32 in [0, 1]: grey or coloured as the model wants it, scaled to its size."""
    channels, height, width = shape
    try:
        pixels = read_pixels(path, channels, (height, width))
    except DataError as error:
        raise ExportError(str(error)) from error
    return torch.from_numpy(pixels.copy()).float() / 255
