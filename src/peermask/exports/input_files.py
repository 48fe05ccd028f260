"""Inputs of an exported model from files, read without trust: rows of a .npy file, or an image."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from peermask.data.image_files import read_pixels
from peermask.errors import DataError, ExportError


def read_rows(path: Path, shape: tuple[int, ...], dtype: str, vocabulary: int | None = None) -> Tensor:
    """[n, *shape] of a model's own type: bytes, floats that are finite, or tokens."""
    try:
        with path.open("rb") as file:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            found, _, kind = read(file)
            there = path.stat().st_size - file.tell()
        if kind.hasobject or kind.kind not in "buif":
            raise ExportError(f"{path} holds {kind}; inputs are numbers")
        if math.prod(found) * kind.itemsize != there:
            raise ExportError(f"{path} claims {math.prod(found) * kind.itemsize} bytes and has {there}: it is damaged")
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ExportError(f"{path} cannot be read: {reason}") from None
    if array.shape == shape:
        array = array[None]
    if array.shape[1:] != shape:
        raise ExportError(f"{path} has shape {array.shape}; the model takes [n, {', '.join(map(str, shape))}]")
    if dtype != "float32" and array.dtype.kind not in "bui":
        raise ExportError(f"{path} holds {array.dtype}; the model takes whole numbers ({dtype})")
    if dtype == "uint8" and array.size and not 0 <= array.min() <= array.max() <= 255:
        raise ExportError(f"{path} has values from {array.min()} to {array.max()}; the model takes 0 to 255")
    if vocabulary is not None and array.size and not 0 <= array.min() <= array.max() < vocabulary:
        raise ExportError(
            f"{path} has tokens from {array.min()} to {array.max()}; the model knows 0 to {vocabulary - 1}"
        )
    rows = torch.from_numpy(array.astype(dtype))
    if rows.is_floating_point() and not bool(torch.isfinite(rows).all()):
        raise ExportError(f"{path} has values that are NaN or infinite")
    return rows


def read_image(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """[C, H, W] float32 in [0, 1]: grey or coloured as the model wants it, scaled to its size."""
    channels, height, width = shape
    try:
        pixels = read_pixels(path, channels, (height, width))
    except DataError as error:
        raise ExportError(str(error)) from error
    return torch.from_numpy(pixels.copy()).float() / 255
